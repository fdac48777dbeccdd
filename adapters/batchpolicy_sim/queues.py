"""Where jobs wait: in an order of the engine's own, or in that of a plan."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from batchpolicy_sim.job import WAITING, Job


class WaitingQueue(ABC):
    """Offers one waiting job after another to a step."""

    @abstractmethod
    def add(self, job: Job) -> None:
        """A job has arrived; offered once it is ready."""

    @abstractmethod
    def put_back(self, job: Job) -> None:
        """A job was preempted."""

    @abstractmethod
    def drop(self, job: Job) -> None:
        """A waiting job ends."""

    @abstractmethod
    def now_ready(self, job: Job) -> None:
        """A job that was blocked can start."""

    @abstractmethod
    def head(self) -> Job | None:
        """The job on offer, None if there is none."""

    @abstractmethod
    def pop(self) -> None:
        """The head has started."""

    @abstractmethod
    def skip(self) -> None:
        """The head is passed by in this step."""

    @abstractmethod
    def step_over(self) -> None:
        """What was skipped is on offer again, in its old place."""


class NativeQueue(WaitingQueue):
    """An order of the engine's own: ``fcfs``, preempted jobs in front, or ``priority``.

    With ``anew`` preempted jobs wait as if they had just come, and ties go by that.
    """

    def __init__(self, order: str, *, anew: bool = False) -> None:
        self._by_priority = order == "priority"
        self._anew = anew
        self._heap: list[tuple[Any, Job]] = []
        self._keys: dict[str, Any] = {}
        """Keys of blocked jobs."""
        self._skipped: list[tuple[Any, Job]] = []
        self._last = self._first = 0

    @override
    def add(self, job: Job) -> None:
        self._last += 1
        self._push(job, self._last)

    @override
    def put_back(self, job: Job) -> None:
        if self._anew:
            self.add(job)
            return
        self._first -= 1
        self._push(job, self._first)

    @override
    def drop(self, job: Job) -> None:
        # Its entry is passed over when it comes to the front.
        self._keys.pop(job.id, None)

    @override
    def now_ready(self, job: Job) -> None:
        heapq.heappush(self._heap, (self._keys.pop(job.id), job))

    @override
    def head(self) -> Job | None:
        heap = self._heap
        while heap:
            job = heap[0][1]
            if job.state == WAITING:
                return job
            heapq.heappop(heap)
        return None

    @override
    def pop(self) -> None:
        heapq.heappop(self._heap)

    @override
    def skip(self) -> None:
        self._skipped.append(heapq.heappop(self._heap))

    @override
    def step_over(self) -> None:
        for entry in self._skipped:
            heapq.heappush(self._heap, entry)
        self._skipped.clear()

    def _push(self, job: Job, place: int) -> None:
        key: Any = place
        if self._by_priority:
            tie = (place,) if self._anew else (job.arrival_s, job.id)
            key = (job.priority, *tie)
        if job.ready:
            heapq.heappush(self._heap, (key, job))
        else:
            self._keys[job.id] = key


class PlannedQueue(WaitingQueue):
    """Offers what a plan says, and nothing when it is used up."""

    def __init__(self) -> None:
        self._offer: list[Job] = []

    def offer(self, jobs: Iterable[Job]) -> None:
        """Offer these in order in the next step."""
        self._offer = list(jobs)[::-1]

    @override
    def add(self, job: Job) -> None:
        pass

    @override
    def put_back(self, job: Job) -> None:
        pass

    @override
    def drop(self, job: Job) -> None:
        pass

    @override
    def now_ready(self, job: Job) -> None:
        pass

    @override
    def head(self) -> Job | None:
        offer = self._offer
        while offer:
            if offer[-1].state == WAITING and offer[-1].ready:
                return offer[-1]
            offer.pop()
        return None

    @override
    def pop(self) -> None:
        self._offer.pop()

    @override
    def skip(self) -> None:
        self._offer.pop()

    @override
    def step_over(self) -> None:
        self._offer.clear()
