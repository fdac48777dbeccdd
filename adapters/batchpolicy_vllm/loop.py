"""Arrivals, steps and results of one scheduler on a virtual clock."""

from __future__ import annotations

import heapq
import math
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from batchpolicy.engine import Observer, StepRecord
from batchpolicy.errors import StepLimitReached, WorkloadError
from batchpolicy.requests import Status
from batchpolicy.step_cost import StepCost, StepShape
from batchpolicy.workload import WorkloadRequest
from batchpolicy_vllm import seams
from batchpolicy_vllm.books import Books

_TOKEN, _STOP = 7, 8


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time now."""
        return self.now_s


class Loop:
    """Arrivals, steps and results on one virtual clock."""

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
        self._hasher = hasher
        self._seed = seed
        self._arrivals = list(reversed(books.workload.requests))
        self._cancels: list[tuple[float, str]] = []
        self._mid_prefill: dict[str, int] = {}
        """Tokens computed of each request whose prompt is not done."""
        self._turns = Counter(r.session for r in self._arrivals if r.session)
        """Turns to come of each session."""
        self._said: dict[str, list[int]] = {}
        """Text of the latest turn of each session that goes on."""

    def run(self, max_steps: int, observer: Observer | None) -> None:
        """Serve until every request has ended."""
        scheduler, books = self._scheduler, self._books
        while self._arrivals or scheduler.has_requests():
            self._enter()
            if not scheduler.get_num_unfinished_requests():
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
            self._scheduler.add_request(self._request(request))
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
        if not events:
            raise WorkloadError(
                f"workload {self._books.workload.name!r}: the engine computes nothing although "
                f"{self._scheduler.get_num_unfinished_requests()} requests wait."
            )
        self._clock.now_s = max(self._clock.now_s, min(events))

    def _step(self, observer: Observer | None) -> bool:
        """One engine step; tells whether anything was computed or preempted."""
        scheduler, books = self._scheduler, self._books
        start_s = self._clock.now_s
        output = scheduler.schedule()
        tokens = output.num_scheduled_tokens
        books.steps += 1
        preempted = self._book_preemptions(output)
        self._book_admissions(output, start_s)
        books.peak_waiting = max(books.peak_waiting, len(scheduler.waiting))
        if tokens:
            self._clock.now_s += self._cost(self._shape(tokens))
        if observer is not None:
            observer(
                StepRecord(
                    index=books.steps - 1,
                    start_s=start_s,
                    duration_s=self._clock.now_s - start_s,
                    tokens=dict(tokens),
                    preempted=preempted,
                    running=len(scheduler.running),
                    waiting=len(scheduler.waiting),
                    free_kv_blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                )
            )
        results = scheduler.update_from_output(output, self._sample(tokens))
        now_s = self._clock.now_s
        for request_id, count, ended in seams.results(results):
            place = books.place[request_id]
            if count:
                books.token(place, count, now_s)
            if ended is not None:
                books.end(place, ended, now_s)
        # The engine admits nobody in a step that preempts, so there may be nothing to compute.
        return bool(tokens or preempted)

    def _shape(self, tokens: dict[str, int]) -> StepShape:
        prefill = context = decodes = decode_context = 0
        attention = 0.0
        requests, reached = self._scheduler.requests, self._books.reached
        for request_id, n in tokens.items():
            request = requests[request_id]
            # The engine has already advanced its count past this step.
            before = request.num_computed_tokens - n
            if n == 1 and request.num_output_tokens and not request.is_prefill_chunk:
                decodes += 1
                decode_context += before
            else:
                prefill += n
                context += before
                attention += n * (before + n / 2)
            if request.is_prefill_chunk:
                self._mid_prefill[request_id] = before + n
            elif self._mid_prefill:
                # Recomputation may end with a chunk of one token, which looks like a decode.
                self._mid_prefill.pop(request_id, None)
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
            computed = self._mid_prefill.pop(
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
            sampled.append([_STOP if request.num_output_tokens + 1 >= wanted else _TOKEN])
        ids = list(tokens)
        return seams.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
        )

    def _request(self, r: WorkloadRequest) -> Any:
        return seams.Request(
            request_id=r.id,
            prompt_token_ids=self._prompt(r),
            sampling_params=seams.SamplingParams(
                max_tokens=r.max_tokens,
                temperature=0.0,
                ignore_eos=True,
                stop_token_ids=[_STOP],
                extra_args=_xargs(r),
            ),
            pooling_params=None,
            arrival_time=r.arrival_s,
            priority=r.priority,
            block_hasher=self._hasher,
        )

    def _prompt(self, r: WorkloadRequest) -> list[int]:
        if self._hasher is None:
            return [0] * r.prompt_tokens
        prompt = self._shared(r)[: r.prompt_tokens]
        prompt += _tokens(f"{self._seed} {r.id}", r.prompt_tokens - len(prompt))
        if r.session:
            self._turns[r.session] -= 1
            if self._turns[r.session]:
                self._said[r.session] = prompt + _answer(r)
            else:
                self._said.pop(r.session, None)
        return prompt

    def _shared(self, r: WorkloadRequest) -> list[int]:
        """What the prompt begins with and other requests may have too; may be longer than it."""
        if r.prefix_blocks:
            blocks = (_tokens(f"block {b}", r.prefix_block_tokens) for b in r.prefix_blocks)
            return list(chain.from_iterable(blocks))
        if r.session in self._said:
            return self._said[r.session]
        return list(_tokens(f"prefix {r.prefix_id}", r.prefix_tokens if r.prefix_id else 0))


def _xargs(r: WorkloadRequest) -> dict[str, Any]:
    """What a request says about itself, as ``Metadata`` reads it."""
    said: dict[str, Any] = {"weight": r.weight}
    for key, name in (("tenant", r.tenant), ("session_id", r.session)):
        if name:
            said[key] = name
    for key, value in (
        ("ttft_slo_s", r.ttft_slo_s),
        ("tpot_slo_s", r.tpot_slo_s),
        # Equal deadlines have to stay equal, which sums with the arrivals would not.
        ("deadline_at_s", r.deadline_s),
        ("queue_ttl_s", r.queue_ttl_s),
        ("predicted_output_tokens", r.predicted_output_tokens),
    ):
        if math.isfinite(value):
            said[key] = value
    return said


def _answer(r: WorkloadRequest) -> list[int]:
    """What a request will have produced at its end, if nobody cancels it; see ``_sample``."""
    if r.output_tokens <= r.max_tokens:
        return [_TOKEN] * (r.output_tokens - 1) + [_STOP]
    return [_TOKEN] * r.max_tokens


def _tokens(name: str, count: int) -> range:
    """Token ids that differ between names, wherever Python runs."""
    start = zlib.crc32(name.encode()) << 20
    return range(start, start + count)
