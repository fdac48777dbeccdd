"""What a replay ends in the queue, as a server's front end would."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any

from batchpolicy.engine import EngineLimits
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest

_LEAST_TTL_S, _MOST_TTL_S = 1e-6, 1e9
"""A limit outside of these is none, as for the runner."""


class Front:
    """Knows which requests of a workload have to go while they wait.

    Those are the ones that can never run and, where ``native``, in an order of SGLang's
    own, those past ``queue_ttl_s``. Under a policy the runner ends who is past its time.
    """

    def __init__(self, workload: Workload, limits: EngineLimits, *, native: bool) -> None:
        self.never = {r.id for r in workload.requests if never_fits(r, limits)}
        self._ttl_s = {
            r.id: r.queue_ttl_s
            for r in workload.requests
            if native and _LEAST_TTL_S <= r.queue_ttl_s <= _MOST_TTL_S
        }
        self._due: list[tuple[float, str]] = []

    def arrived(self, r: WorkloadRequest) -> None:
        """A request came."""
        if r.id in self._ttl_s:
            heapq.heappush(self._due, (r.arrival_s + self._ttl_s[r.id], r.id))

    def take(self, now_s: float, waiting: Mapping[str, Any]) -> list[tuple[str, Status]]:
        """Requests to end now, of those that wait and never started."""
        found: list[tuple[str, Status]] = []
        while self._due and self._due[0][0] <= now_s:
            request_id = heapq.heappop(self._due)[1]
            if request_id in waiting:
                found.append((request_id, Status.EXPIRED))
        return found

    @property
    def next_s(self) -> float:
        """When the next one may be past its time; inf for never."""
        return self._due[0][0] if self._due else math.inf


def never_fits(r: WorkloadRequest, limits: EngineLimits) -> bool:
    """Whether SGLang with these limits would refuse a request, or cut its answer short.

    It keeps a page beside what a request takes, some tokens of the pool and some positions.
    """
    page = limits.kv_block_tokens
    pool = limits.kv_blocks * page
    paged = -(-r.prompt_tokens // page) * page
    answer = min(r.output_tokens, r.max_tokens)
    return (
        r.prompt_tokens + answer > min(limits.max_model_len, pool - 2)
        or r.prompt_tokens >= pool - 6
        or paged + answer > pool - page - 1
    )
