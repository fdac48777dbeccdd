"""What runs, what waits, and what they hold."""

from __future__ import annotations

from collections import Counter

from batchpolicy.engine import EngineLimits
from batchpolicy_sim.decodes import Decodes
from batchpolicy_sim.job import ENDED, RUNNING, WAITING, Job
from batchpolicy_sim.kv.cached import CachedPool
from batchpolicy_sim.kv.pool import CountedPool, Pool
from batchpolicy_sim.queues import WaitingQueue


class Batch:
    """The engine's state between two steps; knows no order of its own."""

    def __init__(self, limits: EngineLimits, queue: WaitingQueue) -> None:
        self.queue = queue
        blocks, tokens = limits.kv_blocks, limits.kv_block_tokens
        self.cached: CachedPool | None = None
        if limits.prefix_cache:
            self.cached = CachedPool(blocks, tokens)
        self.pool: Pool = self.cached or CountedPool(blocks, tokens)
        self.decodes = Decodes(tokens, by_name=limits.prefix_cache)
        self.jobs: dict[str, Job] = {}
        """All that have arrived and not ended."""
        self.running: dict[str, int] = {}
        """Ids in the engine's order, each with the tokens that it got last, or 1."""
        self.rest: list[Job] = []
        """Running jobs that are not among ``decodes``, in the engine's order."""
        self.waiting = 0
        """Jobs that wait, blocked ones included."""
        self.loras: Counter[int] = Counter()
        """Running jobs of each adapter."""
        self.encoder_free = limits.encoder_cache_tokens
        self._encoding: dict[str, int] = {}
        """Encoder space held by each job."""
        self._next_pos = 0

    def arrived(self, job: Job) -> None:
        """A job waits from now on."""
        self.jobs[job.id] = job
        self.waiting += 1
        self.queue.add(job)

    def seat(self, job: Job, tokens: int) -> None:
        """A waiting job runs from now on, behind the others."""
        job.state = RUNNING
        job.pos = self._next_pos
        self._next_pos += 1
        self.running[job.id] = tokens
        self.rest.append(job)
        self.waiting -= 1
        if job.lora:
            self.loras[job.lora] += 1
        if job.encoder and self.encoder_free is not None:
            self._encoding[job.id] = job.encoder
            self.encoder_free -= job.encoder

    def preempt(self, job: Job) -> None:
        """A running job loses its KV and waits again."""
        self._unseat(job)
        job.state = WAITING
        job.preemptions += 1
        job.reached = max(job.reached, job.computed)
        job.computed = 0
        self.waiting += 1
        self.queue.put_back(job)

    def end(self, job: Job) -> None:
        """A job ends, from whatever state."""
        if job.state == RUNNING:
            self._unseat(job)
        else:
            self.waiting -= 1
            self.queue.drop(job)
        job.state = ENDED
        del self.jobs[job.id]

    def emitted_last(self, job: Job) -> None:
        """A job that has just left ``decodes`` or ``rest`` with its last token ends."""
        self.pool.release(job)
        self._leave_seat(job)
        job.state = ENDED
        del self.jobs[job.id]

    def encoded(self, job: Job) -> bool:
        """The encoder space of a job is free again; tells whether it had any."""
        if not self._encoding:
            return False
        space = self._encoding.pop(job.id, 0)
        if space and self.encoder_free is not None:
            self.encoder_free += space
        return space > 0

    def spread(self) -> list[Job]:
        """All running jobs one by one in order, none of them among ``decodes``."""
        jobs = self.jobs
        order = [jobs[i] for i in self.running]
        for job in order:
            if job.steady:
                self.decodes.leave(job)
        return order

    def reorder(self, ids: list[str]) -> None:
        """Another order of the running jobs."""
        self.running = {i: self.running[i] for i in ids}
        for i in ids:
            job = self.jobs[i]
            job.pos = self._next_pos
            self._next_pos += 1
            if job.steady:
                self.decodes.last_pos = job.pos
        self.rest.sort(key=_pos)

    def _unseat(self, job: Job) -> None:
        if job.steady:
            self.decodes.leave(job)
        else:
            self.rest.remove(job)
        self.pool.release(job)
        self._leave_seat(job)

    def _leave_seat(self, job: Job) -> None:
        del self.running[job.id]
        if job.lora:
            self.loras[job.lora] -= 1
            if not self.loras[job.lora]:
                del self.loras[job.lora]
        self.encoded(job)


def _pos(job: Job) -> int:
    return job.pos
