"""Waiting requests that must end: too large ever to run, or past their time in the queue."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

from batchpolicy.requests import Status
from batchpolicy.runner.facts import EngineFacts, RequestFacts


class End(NamedTuple):
    """A request to end, with what its client is told."""

    request_id: str
    status: Status
    reason: str


class Ends:
    """Knows when a request's time in the queue is over without a look at the queue."""

    def __init__(self, engine: EngineFacts, ttl_s: float) -> None:
        self._blocks = engine.total_kv_blocks
        self._block_tokens = engine.kv_block_tokens
        self._ttl_s = ttl_s
        self._never: list[End] = []
        self._new: list[tuple[str, float]] = []
        self._due: list[tuple[float, str, float]] = []

    def arrived(self, request_id: str, facts: RequestFacts) -> None:
        """A request came; refuse it if its prompt alone fills more than all KV blocks."""
        need = -(-facts.prompt_tokens // self._block_tokens)
        if need > self._blocks:
            reason = (
                f"refused: its prompt needs {need} KV blocks, of {self._blocks} that there are"
            )
            self._never.append(End(request_id, Status.REFUSED, reason))
            return
        ttl_s = min(facts.queue_ttl_s, self._ttl_s)
        if ttl_s < math.inf and facts.arrival_s is not None:
            heapq.heappush(self._due, (facts.arrival_s + ttl_s, request_id, ttl_s))
        elif ttl_s < math.inf:
            self._new.append((request_id, ttl_s))

    def begin(self, now_s: float) -> None:
        """A step starts; requests whose arrival the tick stamps have arrived now."""
        for request_id, ttl_s in self._new:
            heapq.heappush(self._due, (now_s + ttl_s, request_id, ttl_s))
        self._new.clear()

    def take(self, now_s: float) -> list[End]:
        """Requests to end now; some may have started or ended already."""
        found, self._never = self._never, []
        while self._due and self._due[0][0] <= now_s:
            _, request_id, ttl_s = heapq.heappop(self._due)
            reason = f"expired: it waited longer than {ttl_s:g} s to start"
            found.append(End(request_id, Status.EXPIRED, reason))
        return found

    def next_s(self, may_end: Callable[[str], bool]) -> float:
        """When the next of those that may end will be past its time; inf for never."""
        while self._due and not may_end(self._due[0][1]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf
