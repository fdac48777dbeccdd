"""Arrivals, steps and results of one scheduler on a virtual clock."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from batchpolicy.engine import Observer, StepRecord
from batchpolicy.errors import StepLimitReached, WorkloadError
from batchpolicy.prompts import STOP, TOKEN
from batchpolicy.replay import Books, Clock
from batchpolicy.requests import Status
from batchpolicy.step_cost import StepCost, StepShape
from batchpolicy_vllm import seams
from batchpolicy_vllm.clients import Clients


class _InFlight(NamedTuple):
    """A step whose results are not back."""

    scheduled: Any
    sampled: Any
    end_s: float


class Loop:
    """Arrivals, steps and results on one virtual clock.

    Under asynchronous scheduling two steps are in flight, as vLLM's engine core keeps them:
    a step is planned when its predecessor begins, knows the results up to the one before
    that, and begins when its predecessor ends. Else one is.
    """

    def __init__(
        self,
        scheduler: Any,
        books: Books,
        clock: Clock,
        cost: StepCost,
        hasher: Callable[[Any], Any] | None,
        seed: int,
    ) -> None:
        self._scheduler = scheduler
        self._books = books
        self._clock = clock
        self._cost = cost
        self._asynchronous = bool(scheduler.scheduler_config.async_scheduling)
        self._in_flight: deque[_InFlight] = deque()
        self._clients = Clients(books.workload.requests, hasher, seed)
        self._arrivals = list(reversed(books.workload.requests))
        self._cancels: list[tuple[float, str]] = []
        self._computed: dict[str, int] = {}
        """Tokens computed of each request whose count in the engine does not tell."""

    def run(self, max_steps: int, observer: Observer | None) -> None:
        """Serve until every request has ended."""
        scheduler, books = self._scheduler, self._books
        while self._arrivals or scheduler.has_requests():
            self._enter()
            if not scheduler.get_num_unfinished_requests():
                if self._in_flight:
                    self._take_results()
                    continue
                if self._arrivals:
                    self._clock.now_s = max(self._clock.now_s, self._arrivals[-1].arrival_s)
                    self._enter()
                    continue
                # One more step tells the workers of the last requests that ended.
                self._step(None)
                break
            if books.steps >= max_steps:
                raise StepLimitReached(
                    f"workload {books.workload.name!r}: {max_steps} steps did not serve it, "
                    f"{(books.status <= Status.RUNNING).sum()} of {len(books.status)} requests "
                    "are left. Lower the load, or raise max_steps."
                )
            if not self._step(observer):
                self._wait()
        books.end_s = self._clock.now_s

    def _enter(self) -> None:
        """Requests that have arrived by now join the queue; clients that left, leave."""
        now_s, arrivals = self._clock.now_s, self._arrivals
        while arrivals and arrivals[-1].arrival_s <= now_s:
            request = arrivals.pop()
            self._scheduler.add_request(self._clients.request(request))
            if request.cancel_at_s < math.inf:
                heapq.heappush(self._cancels, (request.cancel_at_s, request.id))
        while self._cancels and self._cancels[0][0] <= now_s:
            _, request_id = heapq.heappop(self._cancels)
            if request_id in self._scheduler.requests:
                self._scheduler.finish_requests(request_id, seams.RequestStatus.FINISHED_ABORTED)
                self._books.end(self._books.place[request_id], Status.ABORTED, now_s)

    def _wait(self) -> None:
        """Nothing could be computed: go to the next event, which must exist."""
        if not self._scheduler.get_num_unfinished_requests():
            return
        events = [r.arrival_s for r in self._arrivals[-1:]] + [c[0] for c in self._cancels[:1]]
        driver = getattr(self._scheduler, "_driver", None)
        if driver is not None and driver.wake_s < math.inf:
            events.append(driver.wake_s)
        if not events:
            raise WorkloadError(
                f"workload {self._books.workload.name!r}: the engine computes nothing although "
                f"{self._scheduler.get_num_unfinished_requests()} requests wait."
            )
        self._clock.now_s = max(self._clock.now_s, min(events))

    def _step(self, observer: Observer | None) -> bool:
        """Schedule one step and take the results that are due; tells whether anything went on."""
        scheduler, books = self._scheduler, self._books
        now_s = self._clock.now_s
        output = scheduler.schedule()
        tokens = output.num_scheduled_tokens
        books.steps += 1
        preempted = self._book_preemptions(output)
        self._book_admissions(output, now_s)
        books.peak_waiting = max(books.peak_waiting, len(scheduler.waiting))
        start_s = end_s = self._in_flight[-1].end_s if self._in_flight else now_s
        if tokens:
            end_s += self._cost(self._shape(tokens))
        if observer is not None:
            observer(
                StepRecord(
                    index=books.steps - 1,
                    start_s=start_s,
                    duration_s=end_s - start_s,
                    tokens=dict(tokens),
                    preempted=preempted,
                    running=len(scheduler.running),
                    waiting=len(scheduler.waiting),
                    free_kv_blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                )
            )
        self._in_flight.append(_InFlight(output, self._sample(tokens), end_s))
        if self._asynchronous and tokens and len(self._in_flight) == 1:
            return True
        behind = len(self._in_flight) > 1
        self._take_results()
        # A step that computes nothing is done when its predecessor is.
        while self._in_flight and not self._in_flight[0].scheduled.num_scheduled_tokens:
            self._take_results()
        # The engine admits nobody in a step that preempts, so there may be nothing to compute.
        return bool(tokens or preempted or behind)

    def _take_results(self) -> None:
        """Wait for the oldest step in flight, and book what came out of it."""
        scheduled, sampled, end_s = self._in_flight.popleft()
        self._clock.now_s = end_s
        books = self._books
        for request_id, count, ended in seams.results(
            self._scheduler.update_from_output(scheduled, sampled)
        ):
            place = books.place[request_id]
            if count:
                books.token(place, count, end_s)
            if ended is not None:
                books.end(place, ended, end_s)

    def _shape(self, tokens: dict[str, int]) -> StepShape:
        prefill = context = decodes = decode_context = 0
        attention = 0.0
        requests, reached = self._scheduler.requests, self._books.reached
        for request_id, n in tokens.items():
            request = requests[request_id]
            # The engine has already advanced its count past this step.
            before = request.num_computed_tokens - n
            if n == 1 and before >= request.num_prompt_tokens and not request.is_prefill_chunk:
                decodes += 1
                decode_context += before
            else:
                prefill += n
                context += before
                attention += n * (before + n / 2)
            if request.is_prefill_chunk or self._asynchronous:
                self._computed[request_id] = before + n
            elif self._computed:
                # Recomputation may end with a chunk of one token, which looks like a decode.
                self._computed.pop(request_id, None)
            if request_id in reached:
                again = min(reached[request_id], before + n) - before
                if again > 0:
                    self._books.recomputed[self._books.place[request_id]] += again
        return StepShape(prefill, attention, context, decodes, decode_context, len(tokens))

    def _book_admissions(self, output: Any, now_s: float) -> None:
        books = self._books
        for request_id, hit in seams.admitted(output).items():
            place = books.place[request_id]
            if np.isnan(books.first_scheduled_s[place]):
                books.first_scheduled_s[place] = now_s
                books.cached[place] = hit

    def _book_preemptions(self, output: Any) -> tuple[str, ...]:
        books = self._books
        preempted = tuple(sorted(output.preempted_req_ids or ()))
        for request_id in preempted:
            books.preemptions[books.place[request_id]] += 1
            # A request that decodes has computed all but its latest token.
            computed = self._computed.pop(
                request_id, self._scheduler.requests[request_id].num_tokens - 1
            )
            books.reached[request_id] = max(books.reached.get(request_id, 0), computed)
        return preempted

    def _sample(self, tokens: dict[str, int]) -> Any:
        """One token for each request that this step brings to its next one."""
        requests, books = self._scheduler.requests, self._books
        sampled: list[list[int]] = []
        for request_id in tokens:
            request = requests[request_id]
            if request.is_prefill_chunk:
                sampled.append([])
                continue
            wanted = books.workload.requests[books.place[request_id]].output_tokens
            # The place of this token in the answer; those before it may be in flight.
            place = request.num_computed_tokens - request.num_prompt_tokens
            sampled.append([STOP if place + 1 >= wanted else TOKEN])
        ids = list(tokens)
        return seams.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
        )
