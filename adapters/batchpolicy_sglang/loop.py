"""Arrivals, steps and results of one SGLang scheduler on a virtual clock."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from batchpolicy.engine import Observer, StepRecord
from batchpolicy.errors import StepLimitReached, WorkloadError
from batchpolicy.prompts import STOP, TOKEN
from batchpolicy.replay import Books, Clock
from batchpolicy.requests import Status
from batchpolicy.step_cost import StepCost, StepShape
from batchpolicy_sglang.attach import ATTRIBUTE
from batchpolicy_sglang.clients import Clients
from batchpolicy_sglang.front import Front
from batchpolicy_sglang.seams import batches, ends, names

_NO_LOGITS: Any = (
    SimpleNamespace(hidden_states=None, customized_info=None, next_token_logprobs=None)
    if names.runtime_context is None
    else None
)
"""Before 0.5.13 SGLang looks into them in any case."""
_STAMP_S = 1.0
"""SGLang takes a stamp of 0 for none at all."""


class Loop:
    """Arrivals, steps and results on one virtual clock.

    With overlap a step is planned when its predecessor begins, knows the results up to the
    one before that, and begins when its predecessor ends, as SGLang's own loop has it.
    """

    def __init__(
        self,
        scheduler: Any,
        books: Books,
        clock: Clock,
        cost: StepCost,
        clients: Clients,
        front: Front,
    ) -> None:
        self._scheduler = scheduler
        self._books = books
        self._clock = clock
        self._cost = cost
        self._clients = clients
        self._front = front
        self._overlap = bool(scheduler.enable_overlap)
        self._sees_ends_late = batches.sees_ends_late(scheduler)
        self._arrivals = list(reversed(books.workload.requests))
        self._cancels: list[tuple[float, str]] = []
        self._wanted = {r.id: r.output_tokens for r in books.workload.requests}
        self._out: dict[str, int] = {}
        """Tokens put out by each request that has arrived and not ended."""
        self._preempted: list[str] = []
        self._busy_until_s = 0.0
        scheduler.model_worker.forward_batch_generation = self._forward
        self._requeue = scheduler._add_request_to_queue
        scheduler._add_request_to_queue = self._queued

    def run(self, max_steps: int, observer: Observer | None) -> None:
        """Serve until every request has ended."""
        books = self._books
        with _stamps_of(self._clock):
            while self._arrivals or self._out:
                self._enter()
                if not self._out:
                    if self._arrivals:
                        self._clock.now_s = max(self._clock.now_s, self._arrivals[-1].arrival_s)
                    continue
                if books.steps >= max_steps:
                    raise StepLimitReached(
                        f"workload {books.workload.name!r}: {max_steps} steps did not serve it, "
                        f"{len(self._out) + len(self._arrivals)} of "
                        f"{len(books.workload.requests)} requests are left. Lower the load, or "
                        "raise max_steps."
                    )
                if not self._step(observer):
                    self._wait()
        books.end_s = self._clock.now_s

    def told(self, message: Any) -> None:
        """SGLang tells a client that its request was ended where it waited."""
        told = ends.end_of(message)
        if told is not None:
            self._end(*told)

    def _enter(self) -> None:
        """Requests that have arrived by now join the queue; clients that left, leave."""
        now_s, arrivals = self._clock.now_s, self._arrivals
        arrived: list[Any] = []
        while arrivals and arrivals[-1].arrival_s <= now_s:
            r = arrivals.pop()
            message = self._clients.request(r)
            if r.id in self._front.never:
                self._books.end(self._books.place[r.id], Status.REFUSED, now_s)
                continue
            arrived.append(message)
            self._out[r.id] = 0
            self._front.arrived(r)
            if r.cancel_at_s < math.inf:
                heapq.heappush(self._cancels, (r.cancel_at_s, r.id))
        if arrived:
            self._scheduler.process_input_requests(arrived)
        while self._cancels and self._cancels[0][0] <= now_s:
            _, request_id = heapq.heappop(self._cancels)
            if request_id in self._out:
                ends.cancel(self._scheduler, request_id, self._out)
                # What is still computed for it, its client never sees.
                self._end(request_id, Status.ABORTED)
        self._expire(now_s)

    def _expire(self, now_s: float) -> None:
        if self._front.next_s > now_s:
            return
        started = self._books.first_scheduled_s
        waiting = {
            req.rid: req
            for req in self._scheduler.waiting_queue
            if np.isnan(started[self._books.place[req.rid]])
        }
        for request_id, status in self._front.take(now_s, waiting):
            self._end(request_id, status)
            ends.cancel(self._scheduler, request_id, self._out)

    def _end(self, request_id: str, status: Status) -> None:
        if self._out.pop(request_id, None) is not None:
            self._books.end(self._books.place[request_id], status, self._clock.now_s)

    def _wait(self) -> None:
        """Nothing could be computed: go to the next event, which must exist."""
        if not self._out:
            return
        events = [r.arrival_s for r in self._arrivals[-1:]] + [c[0] for c in self._cancels[:1]]
        driver = getattr(self._scheduler, ATTRIBUTE, None)
        by_itself_s = self._front.next_s if driver is None else driver.wake_s
        if by_itself_s < math.inf:
            events.append(by_itself_s)
        if not events:
            raise WorkloadError(
                f"workload {self._books.workload.name!r}: the engine computes nothing although "
                f"{len(self._out)} requests wait."
            )
        self._clock.now_s = max(self._clock.now_s, min(events))

    def _step(self, observer: Observer | None) -> bool:
        """Schedule one step and take the results that are due; tells whether anything went on."""
        scheduler, books = self._scheduler, self._books
        now_s, left = self._clock.now_s, len(self._out)
        seated = batches.held_seats(scheduler)
        self._preempted.clear()
        batch = batches.schedule(scheduler)
        tokens: dict[str, int] = {}
        start_s = end_s = max(self._busy_until_s, now_s) if self._overlap else now_s
        if batch is not None:
            tokens = batches.tokens(batch)
            self._book_admissions(batch, now_s)
            end_s += self._cost(self._shape(batch))
        books.steps += 1
        books.peak_waiting = max(books.peak_waiting, len(scheduler.waiting_queue))
        if observer is not None:
            observer(
                StepRecord(
                    index=books.steps - 1,
                    start_s=start_s,
                    duration_s=end_s - start_s,
                    tokens=tokens,
                    preempted=tuple(sorted(self._preempted)),
                    running=batches.running(scheduler, batch),
                    waiting=len(scheduler.waiting_queue),
                    free_kv_blocks=batches.free_tokens(scheduler) // scheduler.page_size,
                )
            )
        self._busy_until_s = end_s
        behind = scheduler.last_batch is not None and self._overlap
        behind = behind or (self._sees_ends_late and batches.held_seats(scheduler) < seated)
        batches.run(scheduler, batch, end_s, self._take_results)
        return bool(batch is not None or behind or self._preempted or len(self._out) != left)

    def _take_results(self, batch: Any, result: Any, end_s: float) -> None:
        """Wait for a step, and book what came out of it."""
        books, place = self._books, self._books.place
        self._clock.now_s = max(self._clock.now_s, end_s)
        reqs: Iterable[Any] = list(batch.reqs)
        self._scheduler.process_batch_result(batch, result)
        for req in reqs:
            before = self._out.get(req.rid)
            if before is None:
                continue
            count = len(req.output_ids) - before
            if count:
                self._out[req.rid] += count
                books.token(place[req.rid], count, end_s)
            ended = ends.how_ended(req)
            if ended is not None:
                self._end(req.rid, ended)

    def _forward(self, batch: Any, **_: Any) -> Any:
        """In place of the model: one token for each request, and the last one where it ends."""
        wanted = self._wanted
        in_flight = batches.in_flight(self._scheduler) if self._overlap else ()
        sampled = [
            STOP if len(req.output_ids) + (req.rid in in_flight) + 1 >= wanted[req.rid] else TOKEN
            for req in batch.reqs
        ]
        return names.results.GenerationBatchResult(
            next_token_ids=names.torch.tensor(sampled, dtype=names.torch.int64),
            logits_output=_NO_LOGITS,
        )

    def _shape(self, batch: Any) -> StepShape:
        if not batch.forward_mode.is_extend():
            n = len(batch.reqs)
            return StepShape(0, 0.0, 0, n, batches.context_of_decodes(batch), n)
        prefill = context = 0
        attention = 0.0
        reached, recomputed = self._books.reached, self._books.recomputed
        for req, before, n in batches.prefills(batch):
            prefill += n
            context += before
            attention += n * (before + n / 2)
            # Of who has left, nothing is counted any more.
            if req.rid in reached and req.rid in self._out:
                again = min(reached[req.rid], before + n) - before
                if again > 0:
                    recomputed[self._books.place[req.rid]] += again
        return StepShape(prefill, attention, context, 0, 0, len(batch.reqs))

    def _book_admissions(self, batch: Any, now_s: float) -> None:
        if not batch.forward_mode.is_extend():
            return
        books = self._books
        for req, before, _ in batches.prefills(batch):
            place = books.place[req.rid]
            if np.isnan(books.first_scheduled_s[place]):
                books.first_scheduled_s[place] = now_s
                books.cached[place] = before

    def _queued(self, req: Any, *args: Any, **kwargs: Any) -> Any:
        """Whoever comes a second time has lost its KV."""
        books, place = self._books, self._books.place[req.rid]
        if not np.isnan(books.first_scheduled_s[place]) and req.rid in self._out:
            self._preempted.append(req.rid)
            books.preemptions[place] += 1
            computed = len(req.origin_input_ids) + len(req.output_ids) - 1
            if self._overlap and req.rid in batches.in_flight(self._scheduler):
                computed += 1
            books.reached[req.rid] = max(books.reached.get(req.rid, 0), computed)
        return self._requeue(req, *args, **kwargs)


@contextmanager
def _stamps_of(clock: Clock) -> Generator[None, None, None]:
    """Let SGLang stamp its requests by the virtual clock."""
    kept = names.stamps.time
    names.stamps.time = SimpleNamespace(
        perf_counter=lambda: clock.now_s + _STAMP_S, time=time.time, monotonic=time.monotonic
    )
    try:
        yield
    finally:
        names.stamps.time = kept
