"""What happens to requests from outside: they arrive, become ready, are cancelled."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from batchpolicy.workload import Workload
from batchpolicy_sim.job import Job


class Outside:
    """Arrivals and other events on the clock, soonest first."""

    def __init__(self, workload: Workload) -> None:
        self._requests = workload.requests
        self._next = 0
        """Place of the next request that may come at its own time."""
        self._followers: dict[str, list[int]] = {}
        """Places of the requests that come after another's end, by that one's id."""
        self._freed: list[tuple[float, int]] = []
        """Arrivals of those whose predecessor has ended."""
        self._to_follow = 0
        for place, r in enumerate(workload.requests):
            if r.arrival_after:
                self._followers.setdefault(r.arrival_after, []).append(place)
                self._to_follow += 1
        self._cancels: list[tuple[float, str]] = []
        self._blocked: list[tuple[float, int, Job]] = []
        self._skip_followers()

    @property
    def more(self) -> bool:
        """Further requests will arrive at a time that is known."""
        return self._next < len(self._requests) or bool(self._freed)

    @property
    def next_arrival_s(self) -> float:
        """Of those; inf if there are none."""
        at_s = math.inf
        if self._next < len(self._requests):
            at_s = self._requests[self._next].arrival_s
        if self._freed and self._freed[0][0] < at_s:
            at_s = self._freed[0][0]
        return at_s

    @property
    def next_s(self) -> float:
        """When something happens next; inf for never."""
        at_s = self.next_arrival_s
        if self._cancels and self._cancels[0][0] < at_s:
            at_s = self._cancels[0][0]
        if self._blocked and self._blocked[0][0] < at_s:
            at_s = self._blocked[0][0]
        return at_s

    def arrivals(self, now_s: float) -> Iterator[Job]:
        """Requests that have come by now."""
        while self.next_arrival_s <= now_s:
            at_s, place = self._pop()
            r = self._requests[place]
            job = Job(r, place, at_s)
            if r.cancel_at_s < math.inf:
                heapq.heappush(self._cancels, (r.cancel_at_s, r.id))
            if r.ready_at_s > now_s:
                job.ready = False
                heapq.heappush(self._blocked, (r.ready_at_s, place, job))
            yield job

    def ready(self, now_s: float) -> Iterator[Job]:
        """Blocked requests that can start by now; some may have ended."""
        while self._blocked and self._blocked[0][0] <= now_s:
            yield heapq.heappop(self._blocked)[2]

    def cancels(self, now_s: float) -> Iterator[str]:
        """Ids whose client has left by now; some may have ended."""
        while self._cancels and self._cancels[0][0] <= now_s:
            yield heapq.heappop(self._cancels)[1]

    def ended(self, job: Job, now_s: float) -> None:
        """A request ended; others may follow it."""
        if self._followers:
            for place in self._followers.pop(job.id, ()):
                r = self._requests[place]
                at_s = max(r.arrival_s, now_s + r.gap_s)
                heapq.heappush(self._freed, (at_s, place))

    def _pop(self) -> tuple[float, int]:
        requests = self._requests
        if self._freed and (
            self._next >= len(requests)
            or self._freed[0] < (requests[self._next].arrival_s, self._next)
        ):
            return heapq.heappop(self._freed)
        place = self._next
        self._next += 1
        self._skip_followers()
        return requests[place].arrival_s, place

    def _skip_followers(self) -> None:
        if not self._to_follow:
            return
        requests = self._requests
        while self._next < len(requests) and requests[self._next].arrival_after:
            self._next += 1
