"""What a replay ends in the queue, as a server's front end would."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from batchpolicy.engine import EngineLimits
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_vllm import seams

_LEAST_TTL_S, _MOST_TTL_S = 1e-6, 1e9
"""A limit outside of these is none, as for the runner."""


def front_of(
    scheduler: Any,
    workload: Workload,
    limits: EngineLimits,
    clock: Callable[[], float],
    *,
    native: bool,
) -> None:
    """Let a scheduler lose the requests of a workload that have to go while they wait.

    Those are the ones that can never run, and where ``native``, in an order of vLLM's own,
    those past ``queue_ttl_s``: each at the start of the first step after its time. The
    order of the others stays vLLM's. Under a policy, the runner ends who is past its time
    and whose prompt alone is larger than all KV blocks.
    """
    ends: dict[str, tuple[float, str]] = {}
    for r in workload.requests:
        if not native and never_fits(r, limits):
            if r.prompt_tokens <= limits.kv_blocks * limits.kv_block_tokens:
                ends[r.id] = (-math.inf, "refused: it can never fit")
        elif native and _LEAST_TTL_S <= r.queue_ttl_s <= _MOST_TTL_S:
            reason = f"expired: it waited longer than {r.queue_ttl_s:g} s to start"
            ends[r.id] = (r.arrival_s + r.queue_ttl_s, reason)
    if ends:
        _Front(scheduler, ends, clock)


def never_fits(r: WorkloadRequest, limits: EngineLimits) -> bool:
    """Whether no step, or no KV memory, of an engine with these limits can hold a request."""
    most = min(limits.kv_blocks * limits.kv_block_tokens, limits.max_model_len)
    threshold = limits.long_prefill_token_threshold
    part = min(r.prompt_tokens, threshold) if threshold else r.prompt_tokens
    return r.prompt_tokens + min(r.output_tokens, r.max_tokens) > most or (
        not limits.chunked_prefill and part > limits.max_num_batched_tokens
    )


class _Front:
    """Stands before the calls of one scheduler."""

    def __init__(
        self,
        scheduler: Any,
        ends: dict[str, tuple[float, str]],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._ends = ends
        self._clock = clock
        self._due: list[tuple[float, str]] = []
        self._told: list[tuple[int, Any]] = []
        self._calls = (scheduler.add_request, scheduler.schedule, scheduler.update_from_output)
        scheduler.add_request = self._add_request
        scheduler.schedule = self._schedule
        scheduler.update_from_output = self._update_from_output

    def _add_request(self, request: Any) -> None:
        self._calls[0](request)
        end = self._ends.get(request.request_id)
        if end is not None:
            heapq.heappush(self._due, (end[0], request.request_id))

    def _schedule(self, *args: Any) -> Any:
        scheduler, now_s = self._scheduler, self._clock()
        while self._due and self._due[0][0] <= now_s:
            request_id = heapq.heappop(self._due)[1]
            request = scheduler.requests.get(request_id)
            if request is None or seams.has_started(request):
                continue
            seams.end(scheduler, request)
            output = seams.refusal(request_id, self._ends[request_id][1])
            self._told.append((request.client_index, output))
        return self._calls[1](*args)

    def _update_from_output(self, *args: Any) -> Any:
        outputs = self._calls[2](*args)
        for client, output in self._told:
            seams.add_output(outputs, client, output)
        self._told.clear()
        return outputs
