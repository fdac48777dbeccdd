"""Between the engine and the policy runner."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits
from batchpolicy.requests import IntArray, Status
from batchpolicy.runner import EngineFacts, PolicyRunner
from batchpolicy_sim.batch import Batch
from batchpolicy_sim.facts import facts_of
from batchpolicy_sim.job import RUNNING, Job
from batchpolicy_sim.queues import PlannedQueue
from batchpolicy_sim.semantics import Semantics, Step


class Driver:
    """Reports what the engine does, and carries out the plan; decides nothing."""

    def __init__(
        self,
        config: PolicyConfig,
        limits: EngineLimits,
        batch: Batch,
        queue: PlannedQueue,
        semantics: Semantics,
        clock: Callable[[], float],
    ) -> None:
        facts = EngineFacts(
            max_running=limits.max_num_seqs,
            max_token_budget=limits.max_num_batched_tokens,
            total_kv_blocks=limits.kv_blocks,
            kv_block_tokens=limits.kv_block_tokens,
            clock=clock,
            max_prefill_chunk=limits.long_prefill_token_threshold or None,
            chunks=limits.chunked_prefill,
            max_loras=limits.max_loras,
            capabilities=frozenset({"prefix", "preempt", "mixed", "truth"}),
        )
        self.runner = PolicyRunner(
            config, replace(facts, **semantics.facts), PoolProbe(batch, semantics)
        )
        self._defaults = config.requests
        self._batch = batch
        self._queue = queue
        self._semantics = semantics
        self._unblocked: list[Job] = []
        self._preempted: list[str] = []
        self.wake_s = math.inf
        """When to plan anew though nothing has happened."""

    def arrived(self, job: Job) -> None:
        """A request came."""
        self.runner.arrived(job.id, facts_of(job, self._defaults))

    def ready(self, job: Job) -> None:
        """A blocked request can start."""
        self._unblocked.append(job)

    def before_step(self) -> tuple[list[str], list[tuple[Job, Status]]]:
        """Plan the step, displace, and put the plan on offer; who was preempted and refused."""
        refused: list[tuple[Job, Status]] = []
        runner, batch, semantics = self.runner, self._batch, self._semantics
        runner.begin(runner.tick())
        for job in self._unblocked:
            runner.ready(job.id, True)
        self._unblocked.clear()
        plan = runner.plan(
            semantics.free_blocks(), semantics.free_seats(), kept_blocks=semantics.kept_blocks
        )
        self.wake_s = plan.wake_s
        if plan.limits is not None:
            semantics.set_limits(plan.limits)
        for request_id, reason in plan.refuse:
            waiting = batch.jobs.get(request_id)
            if waiting is not None:
                status = Status.EXPIRED if reason.startswith("expired") else Status.REFUSED
                batch.end(waiting)
                refused.append((waiting, status))
        self._preempted = [job.id for job in semantics.follow(plan, runner.keep_order)]
        self._queue.offer([batch.jobs[i] for i in plan.admit if i in batch.jobs])
        return self._preempted, refused

    def after_step(self, step: Step) -> None:
        """Tell the runner what the engine made of the plan."""
        preempted = self._preempted
        if step.preempted:
            preempted = preempted + [job.id for job in step.preempted]
        if step.tokens or self._semantics.closes:
            self.runner.scheduled(step.tokens, step.admitted, preempted)
        elif preempted:
            self.runner.preempted(preempted)

    def results(
        self, step: Step, elapsed_s: float, ended: Sequence[Job], midway: Sequence[str]
    ) -> None:
        """A step is over: who is not ``midway`` in its prefill has emitted a token."""
        runner = self.runner
        if not runner.produced_steadily(len(step.tokens) - len(midway), elapsed_s):
            produced = dict.fromkeys(step.tokens, 1)
            for request_id in midway:
                del produced[request_id]
            runner.produced(produced, {}, elapsed_s)
        for job in ended:
            runner.finished(job.id, Status.ABORTED if job.aborting else Status.FINISHED)


class PoolProbe:
    """Dry runs in the engine's KV memory."""

    def __init__(self, batch: Batch, semantics: Semantics) -> None:
        self._batch = batch
        self._semantics = semantics
        self._more = int(semantics.facts.get("start_blocks", 0))

    def prefix(self, ids: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Cached tokens, and free blocks that starting the whole prompt takes."""
        pool, jobs = self._batch.pool, self._batch.jobs
        hits: list[int] = []
        needs: list[int] = []
        for request_id in ids:
            job = jobs[request_id]
            hit, idle = pool.hit(job)
            hits.append(hit)
            whole = -(-(job.prompt + job.out) // pool.block_tokens)
            needs.append(whole - hit // pool.block_tokens + idle + self._more)
        return np.array(hits, dtype=np.int64), np.array(needs, dtype=np.int64)

    def held(self, ids: Sequence[str]) -> IntArray:
        """Blocks freed by displacing each; -1 for a request that does not run."""
        return np.array([self._held(request_id) for request_id in ids], dtype=np.int64)

    def _held(self, request_id: str) -> int:
        batch = self._batch
        job = batch.jobs.get(request_id)
        if job is None or job.state != RUNNING or not self._semantics.may_go(job):
            return -1
        if job.steady:
            job.held = -(-batch.decodes.computed(job) // batch.pool.block_tokens)
        return batch.pool.held_alone(job)
