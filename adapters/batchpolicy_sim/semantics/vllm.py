"""Steps as vLLM's scheduler fills them."""

from __future__ import annotations

from typing_extensions import override

from batchpolicy.engine import EngineLimits
from batchpolicy.policy import Limits
from batchpolicy.runner import Plan
from batchpolicy_sim.batch import Batch
from batchpolicy_sim.job import Job
from batchpolicy_sim.semantics.step import KeepOrder, Semantics, Step


class VllmSemantics(Semantics):
    """Running requests first, in their order; then waiting ones until one does not fit.

    Short of blocks, the last running request loses its KV, or with ``by_priority`` the
    one of the worst priority, and nobody starts in that step.
    """

    def __init__(self, batch: Batch, limits: EngineLimits, by_priority: bool) -> None:
        self.seats = limits.max_num_seqs
        self._batch = batch
        self._by_priority = by_priority
        self._budget = limits.max_num_batched_tokens
        self._threshold = limits.long_prefill_token_threshold
        self._chunked = limits.chunked_prefill
        self._max_loras = limits.max_loras
        self._block_tokens = limits.kv_block_tokens
        # vLLM counts its null block in.
        self._watermark = int(limits.watermark * (limits.kv_blocks + 1))

    @property
    @override
    def kept_blocks(self) -> int:
        return self._watermark

    @override
    def free_blocks(self) -> int:
        return self._batch.pool.free - self._watermark

    @override
    def free_seats(self) -> int:
        return self.seats - len(self._batch.running)

    @override
    def follow(self, plan: Plan, keep_order: KeepOrder) -> list[Job]:
        batch = self._batch
        displaced = [batch.jobs[i] for i in plan.preempt]
        for job in displaced:
            batch.preempt(job)
        if plan.reorder:
            batch.reorder(keep_order(list(batch.running)))
        return displaced

    @override
    def set_limits(self, limits: Limits) -> None:
        if limits.max_running is not None:
            self.seats = limits.max_running
        if limits.token_budget is not None:
            self._budget = limits.token_budget
        if limits.prefill_chunk is not None:
            self._threshold = limits.prefill_chunk

    @override
    def schedule(self) -> Step:
        batch = self._batch
        # A single request has nobody to starve.
        chunk = self._threshold if len(batch.running) + batch.waiting > 1 else 0
        step = Step(batch.running)
        if self._all_get_theirs(step, chunk):
            left = self._budget - step.prefill_tokens - step.decodes
            loras = set(batch.loras)
            scattered = False
        else:
            left, loras = self._one_by_one(step, chunk)
            scattered = True
        if not step.preempted:
            self._admit(step, left, chunk, loras)
            step.stuck = step.stuck and not scattered
        return step

    def _all_get_theirs(self, step: Step, chunk: int) -> bool:
        """Give all running requests what they want, without a look at each; false if short."""
        batch = self._batch
        decodes, rest, pool = batch.decodes, batch.rest, batch.pool
        steady = decodes.count
        left = self._budget - steady
        if left < 0:
            return False
        beat, size = decodes.beat, self._block_tokens
        need = decodes.entering[beat % size]
        if not rest:
            if need > pool.free:
                return False
        else:
            granted: list[tuple[Job, int]] = []
            # What is behind all decodes gets the tokens that these leave.
            behind = rest[0].pos > decodes.last_pos
            for job in rest:
                n = job.prompt + job.out - job.computed
                if 0 < chunk < n:
                    n = chunk
                if n > left:
                    if not behind or left == 0:
                        return False
                    n = left
                left -= n
                need += -(-(job.computed + n) // size) - job.held
                granted.append((job, n))
            if need > pool.free:
                return False
            for job, n in granted:
                step.add(job, n)
                batch.running[job.id] = n
        step.steady = steady
        step.decodes += steady
        step.decode_context += decodes.context
        if batch.cached is not None:
            self._name_blocks(step, need)
        elif need:
            pool.take(need)
            for job, n in step.worked:
                job.held = -(-(job.computed + n) // size)
        return True

    def _name_blocks(self, step: Step, need: int) -> None:
        """With a prefix cache: take the blocks, and let full ones be found."""
        batch = self._batch
        cached, decodes = batch.cached, batch.decodes
        assert cached is not None
        cached.take(need)
        filled = [(job.pos, job, decodes.computed(job) + 1) for job in decodes.filling_now()]
        for job, n in step.worked:
            job.held = -(-(job.computed + n) // self._block_tokens)
            filled.append((job.pos, job, job.computed + n))
        filled.sort(key=_first)
        for _, job, tokens in filled:
            cached.fill(job, tokens)

    def _one_by_one(self, step: Step, chunk: int) -> tuple[int, set[int]]:
        """Running requests in order, preempting where blocks are short; tokens left, adapters."""
        batch, pool, size = self._batch, self._batch.pool, self._block_tokens
        order = batch.spread()
        batch.rest = list(order)
        granted: dict[Job, int] = {}
        left = self._budget
        at = 0
        while at < len(order) and left > 0:
            job = order[at]
            n = job.prompt + job.out - job.computed
            if 0 < chunk < n:
                n = chunk
            n = min(n, left)
            need = -(-(job.computed + n) // size) - job.held
            lost = False
            while need > pool.free and not lost:
                victim = max(order, key=_worst) if self._by_priority else order[-1]
                place = order.index(victim) if self._by_priority else len(order) - 1
                del order[place]
                if place < at:
                    at -= 1
                left += granted.pop(victim, 0)
                batch.preempt(victim)
                step.preempted.append(victim)
                lost = victim is job
            if lost:
                break
            pool.grow(job, job.computed + n)
            granted[job] = n
            left -= n
            at += 1
        for job, n in granted.items():
            step.add(job, n)
            batch.running[job.id] = n
        if len(granted) < len(order):
            step.tokens = {job.id: n for job, n in granted.items()}
        return left, {job.lora for job in granted if job.lora}

    def _admit(self, step: Step, left: int, chunk: int, loras: set[int]) -> None:
        """Start waiting requests in the queue's order until one does not fit."""
        batch, seats = self._batch, self.seats
        if not batch.waiting:
            step.stuck = True
            return
        queue, pool, size = batch.queue, batch.pool, self._block_tokens
        running = batch.running
        partial = step.tokens is not running
        tokens = dict(step.tokens) if partial else running
        again: dict[str, int] = {}
        while left > 0:
            if len(running) >= seats:
                step.stuck = True
                break
            job = queue.head()
            if job is None:
                step.stuck = True
                break
            if job.lora and job.lora not in loras and len(loras) == self._max_loras:
                queue.skip()
                continue
            hit, idle = pool.hit(job)
            known = job.prompt + job.out
            n = known - hit
            if 0 < chunk < n:
                n = chunk
            if n > left:
                if not self._chunked:
                    break
                n = left
            if job.encoder and batch.encoder_free is not None and job.encoder > batch.encoder_free:
                break
            need = -(-known // size) - hit // size + idle
            if need + (self._watermark if running else 0) > pool.free:
                step.stuck = batch.cached is None
                break
            queue.pop()
            job.computed = pool.adopt(job)
            pool.grow(job, hit + n)
            batch.seat(job, n)
            tokens[job.id] = n
            step.add(job, n)
            (again if job.started else step.admitted)[job.id] = hit
            if job.lora:
                loras.add(job.lora)
            left -= n
        queue.step_over()
        step.tokens = tokens
        # vLLM names those that start anew behind the others.
        step.admitted.update(again)


def _first(entry: tuple[int, Job, int]) -> int:
    return entry[0]


def _worst(job: Job) -> tuple[int, float]:
    return job.priority, job.arrival_s
