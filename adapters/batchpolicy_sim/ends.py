"""Requests that the engine ends in the queue: too large ever to run, or past their time there."""

from __future__ import annotations

import heapq
import math

from batchpolicy.engine import EngineLimits
from batchpolicy.requests import Status
from batchpolicy_sim.batch import Batch
from batchpolicy_sim.job import Job
from batchpolicy_sim.semantics import Semantics

_LEAST_TTL_S, _MOST_TTL_S = 1e-6, 1e9
"""A limit outside of these is none, as for the runner."""


class Ends:
    """Who has to go at the start of a step, as an engine's front end would see to it.

    Where ``native``, in an order of the engine's own, that is all. Under a policy, the
    runner ends who is past its time and whose prompt alone is too large.
    """

    def __init__(
        self,
        batch: Batch,
        limits: EngineLimits,
        ttl_s: float,
        semantics: Semantics,
        *,
        native: bool,
    ) -> None:
        self._semantics = semantics
        self._batch = batch
        self._limits = limits
        self._ttl_s = ttl_s
        self._native = native
        self._due: list[tuple[float, str]] = []
        self._never: list[str] = []

    @property
    def next_s(self) -> float:
        """When the next one may be past its time; inf for never."""
        return self._due[0][0] if self._due else math.inf

    def arrived(self, job: Job) -> None:
        """A request came."""
        if self._never_fits(job):
            self._never.append(job.id)
            return
        ttl_s = job.request.queue_ttl_s
        if not _LEAST_TTL_S <= ttl_s <= _MOST_TTL_S:
            ttl_s = math.inf
        ttl_s = min(ttl_s, self._ttl_s)
        if ttl_s < math.inf:
            heapq.heappush(self._due, (job.arrival_s + ttl_s, job.id))

    def take(self, now_s: float) -> list[tuple[Job, Status]]:
        """Waiting jobs to end now, and how."""
        jobs = self._batch.jobs
        found: list[tuple[Job, Status]] = []
        if self._never:
            found = [(jobs[i], Status.REFUSED) for i in sorted(self._never) if i in jobs]
            self._never.clear()
        while self._due and self._due[0][0] <= now_s:
            job = jobs.get(heapq.heappop(self._due)[1])
            if self._native and job is not None and not job.started:
                found.append((job, Status.EXPIRED))
        return found

    def _never_fits(self, job: Job) -> bool:
        limits, told = self._limits, self._semantics.never_fits(job)
        if told is not None:
            return told
        pool = limits.kv_blocks * limits.kv_block_tokens
        if not self._native and job.prompt > pool:
            return False
        most, encoder = limits.max_num_batched_tokens, limits.encoder_cache_tokens
        return (
            job.prompt + job.wanted > min(pool, limits.max_model_len)
            or (not limits.chunked_prefill and _first_part(job, limits) > most)
            or (encoder is not None and job.encoder > encoder)
        )


def _first_part(job: Job, limits: EngineLimits) -> int:
    """Tokens that its first step has to hold where prompts go whole."""
    threshold = limits.long_prefill_token_threshold
    return min(job.prompt, threshold) if threshold else job.prompt
