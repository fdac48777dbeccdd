"""An engine in plain arithmetic: seats, a token budget and KV blocks, one step after another.

It schedules as engines do: running requests first, in their order, then what the plan
offers until something does not fit; short of blocks, it drops the tail of the running
requests. It keeps its own books, against which a runner's columns can be held.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import BaseModel

from batchpolicy.config import Bounds
from batchpolicy.policy import Policy, Step
from batchpolicy.preemption import Preempt, Preemption
from batchpolicy.requests import Requests, Status
from batchpolicy.runner import EngineFacts, Plan, PolicyRunner, RequestFacts
from tests.support.policies import config_of

STEP_S = 0.25


@dataclass(slots=True, eq=False)
class Job:
    """A request, and all that the engine knows of it."""

    id: str
    prompt: int
    outputs: int
    """Tokens after which it ends."""
    priority: int = 0
    tenant: str = ""
    ttft_slo_s: float = math.inf
    tpot_slo_s: float = math.inf
    weight: float = 1.0
    predicted: float = math.nan
    """Output tokens that a predictor says."""
    arrives: int = 0
    """Step before which it arrives."""
    blocked_for: int = 0
    """Steps until it can start."""
    cancelled: int = 10**9
    """Step before which its client leaves."""
    hit: int = 0
    """Tokens that each admission finds in the cache; less than the prompt."""
    says: dict[str, Any] = field(default_factory=dict)
    """Facts that the runner is told beside or instead of these."""

    ready: bool = field(default=True, init=False, repr=False)
    running: bool = field(default=False, init=False, repr=False)
    ended: bool = field(default=False, init=False, repr=False)
    computed: int = field(default=0, init=False, repr=False)
    output: int = field(default=0, init=False, repr=False)
    in_flight: int = field(default=0, init=False, repr=False)
    """Tokens sampled in steps whose results are not back."""
    preemptions: int = field(default=0, init=False, repr=False)
    displaced: int = field(default=0, init=False, repr=False)
    """Times that a plan displaced it while it admitted others."""
    arrival_s: float = field(default=math.nan, init=False, repr=False)
    first_scheduled_s: float = field(default=math.nan, init=False, repr=False)
    first_token_s: float = field(default=math.nan, init=False, repr=False)
    last_token_s: float = field(default=math.nan, init=False, repr=False)

    def facts(self) -> RequestFacts:
        """What an adapter tells the runner."""
        facts = {
            "prompt_tokens": self.prompt,
            "max_tokens": self.outputs,
            "priority": self.priority,
            "tenant": self.tenant,
            "weight": self.weight,
            "predicted_output_tokens": self.predicted,
            "ttft_slo_s": self.ttft_slo_s,
            "tpot_slo_s": self.tpot_slo_s,
            "ready": self.blocked_for == 0,
        }
        return RequestFacts(**(facts | self.says))


@dataclass(slots=True)
class Result:
    """A step whose results are not back."""

    sampled: list[Job] = field(default_factory=list)
    scheduled: list[Job] = field(default_factory=list)


class MiniEngine:
    """Drives one runner; ``plans`` are what it was told, ``counts`` what happened."""

    def __init__(
        self,
        policy: Policy,
        *,
        seats: int = 4,
        budget: int = 32,
        blocks: int = 64,
        block_tokens: int = 4,
        chunk: int | None = None,
        lag: int = 0,
        watermark: int = 0,
        tells_watermark: bool = True,
        preempt: Preempt | Preemption | None = "class",
        strict: bool = True,
        steadily: bool = True,
        max_bypass_s: float = 0.0,
        bounds: Bounds | None = None,
        **parts: BaseModel | None,
    ) -> None:
        self.seats, self.budget, self.blocks = seats, budget, blocks
        self.block_tokens, self.chunk = block_tokens, chunk
        self.lag, self.watermark = lag, watermark
        self.tells_watermark = tells_watermark
        self.by_class = preempt == "class"
        """Whoever is displaced is of a worse class than somebody who starts."""
        self.steadily = steadily
        """Tell results of one token each by their number, where the runner takes that."""
        self.open_seats = seats
        """Those that admission may fill."""
        self.now_s = 0.0
        self.index = 0
        self.coming: list[Job] = []
        self.waiting: dict[str, Job] = {}
        self.running: list[Job] = []
        self.done: list[Job] = []
        self.refused: list[Job] = []
        self.flight: deque[Result] = deque()
        self.plans: list[Plan] = []
        self.order: list[str] = []
        """Ids in the order of their admissions."""
        self.counts: Counter[str] = Counter()
        self.preempt: Preempt | None = preempt
        self.strict = strict
        self.parts = {"bounds": bounds or Bounds(max_bypass_s=max_bypass_s), **parts}
        self.facts = EngineFacts(
            max_running=seats,
            max_token_budget=budget,
            total_kv_blocks=blocks,
            kv_block_tokens=block_tokens,
            clock=lambda: self.now_s,
            max_prefill_chunk=chunk,
            lag_steps=lag,
        )
        self.runner = self.runner_for(policy)

    def runner_for(self, policy: Policy) -> PolicyRunner:
        """A runner of this engine, in the state of its start."""
        config = config_of(policy, self.preempt, **self.parts)
        return PolicyRunner(config, self.facts, strict=self.strict)

    def run(self, jobs: list[Job], max_steps: int = 20_000) -> None:
        """Serve the jobs until all have ended."""
        self.coming = sorted(jobs, key=lambda job: job.arrives)
        while self.coming or self.waiting or self.running or self.flight:
            assert self.index < max_steps, f"{max_steps} steps did not serve {self.unserved()}"
            self.step()

    def unserved(self) -> list[str]:
        """Ids of what has not ended."""
        return [job.id for job in (*self.coming, *self.waiting.values(), *self.running)]

    def step(self) -> None:
        """One step of the engine: plan, schedule, and results that are due."""
        self._enter()
        runner = self.runner
        runner.begin(runner.tick())
        plan = runner.plan(
            self.free_blocks() - self.watermark,
            self.seats - len(self.running),
            kept_blocks=self.watermark if self.tells_watermark else 0,
        )
        self.check_plan(plan)
        self.plans.append(plan)
        if plan.limits is not None:
            most, self.budget, self.chunk = plan.limits
            self.open_seats = self.seats if most is None else most
        for request_id, _ in plan.refuse:
            self._refuse(self.waiting.pop(request_id))
        dropped = [self._preempt(self._job(request_id)) for request_id in plan.preempt]
        if plan.reorder:
            self._reorder()
        left = self.budget
        tokens: dict[str, int] = {}
        left, lost = self._schedule_running(left, tokens)
        admitted: list[Job] = []
        if not lost:
            admitted = self._admit(plan.admit, left, tokens)
        self.check_displacement(plan, dropped, admitted)
        preempted = [job.id for job in (*dropped, *lost)]
        runner.scheduled(tokens, {job.id: job.hit for job in admitted}, preempted)
        for job in (*dropped, *lost):
            if job.in_flight:
                job.ready = False
                runner.ready(job.id, False)
        self._compute(tokens)
        self.now_s += STEP_S
        if len(self.flight) > self.lag or not tokens:
            while len(self.flight) > (self.lag if tokens else 0):
                self._deliver(self.flight.popleft())
        self.index += 1
        self.counts["idle"] += not tokens

    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.blocks - sum(self._blocks(job.computed) for job in self.running)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _job(self, request_id: str) -> Job:
        return next(job for job in self.running if job.id == request_id)

    def _enter(self) -> None:
        while self.coming and self.coming[0].arrives <= self.index:
            job = self.coming.pop(0)
            job.ready = job.blocked_for == 0
            job.arrival_s = self.now_s
            self.waiting[job.id] = job
            self.runner.arrived(job.id, job.facts())
        for job in list(self.waiting.values()):
            drained = job.in_flight == 0
            if not job.ready and self.index >= job.arrives + job.blocked_for and drained:
                job.ready = True
                self.runner.ready(job.id, True)
        for job in [j for j in (*self.waiting.values(), *self.running) if not j.ended]:
            if job.cancelled <= self.index:
                self._end(job, Status.ABORTED)

    def _end(self, job: Job, status: Status) -> None:
        job.ended = True
        self.waiting.pop(job.id, None)
        if job in self.running:
            self.running.remove(job)
        job.running = False
        self.done.append(job)
        self.runner.finished(job.id, status)

    def _refuse(self, job: Job) -> None:
        assert math.isnan(job.first_scheduled_s), "refused although it had started"
        job.ended = True
        self.refused.append(job)

    def _preempt(self, job: Job) -> Job:
        self.running.remove(job)
        job.running = False
        job.computed = 0
        job.preemptions += 1
        self.waiting[job.id] = job
        return job

    def _reorder(self) -> None:
        ids = [job.id for job in self.running]
        kept = self.runner.keep_order(ids)
        assert sorted(kept) == sorted(ids)
        self.running = [self._job(request_id) for request_id in kept]

    def _want(self, job: Job) -> int:
        known = job.prompt + job.output + job.in_flight
        want = known - job.computed
        decodes = job.output + job.in_flight > 0 and want == 1
        return want if self.chunk is None or decodes else min(want, self.chunk)

    def _schedule_running(self, left: int, tokens: dict[str, int]) -> tuple[int, list[Job]]:
        lost: list[Job] = []
        place = 0
        while place < len(self.running):
            job = self.running[place]
            n = min(self._want(job), left)
            while n and self._short(job, n, tokens):
                victim = self.running[-1]
                left += tokens.pop(victim.id, 0)
                lost.append(self._preempt(victim))
                self.counts["dropped by the engine"] += 1
                if victim is job:
                    n = 0
            if n and job.running:
                tokens[job.id] = n
                left -= n
            place += 1
        return left, lost

    def _short(self, job: Job, n: int, tokens: dict[str, int]) -> bool:
        held = sum(self._blocks(j.computed + tokens.get(j.id, 0)) for j in self.running)
        return held + self._blocks(job.computed + n) - self._blocks(job.computed) > self.blocks

    def _admit(self, ids: list[str], left: int, tokens: dict[str, int]) -> list[Job]:
        admitted: list[Job] = []
        for request_id in ids:
            job = self.waiting[request_id]
            held = sum(self._blocks(j.computed + tokens.get(j.id, 0)) for j in self.running)
            spare = self.watermark if self.running else 0
            need = self._blocks(job.prompt + job.output)
            full = len(self.running) >= self.open_seats or left <= 0
            if full or held + need + spare > self.blocks:
                break
            del self.waiting[request_id]
            job.running = True
            job.computed = job.hit
            if math.isnan(job.first_scheduled_s):
                job.first_scheduled_s = self.now_s
            n = min(self._want(job), left)
            tokens[job.id] = n
            left -= n
            self.running.append(job)
            admitted.append(job)
            self.order.append(job.id)
        return admitted

    def _compute(self, tokens: dict[str, int]) -> None:
        result = Result()
        for job in self.running:
            n = tokens.get(job.id, 0)
            if not n:
                continue
            job.computed += n
            result.scheduled.append(job)
            if job.computed == job.prompt + job.output + job.in_flight:
                result.sampled.append(job)
        for job in result.sampled:
            job.in_flight += 1
        self.flight.append(result)

    def _deliver(self, result: Result) -> None:
        # The engine also reports what ended in flight; the runner has to drop it.
        outputs = {job.id: 1 for job in result.sampled}
        for job in result.sampled:
            job.in_flight -= 1
            if job.ended:
                continue
            job.output += 1
            job.last_token_s = self.now_s
            if math.isnan(job.first_token_s):
                job.first_token_s = self.now_s
        if self.steadily and self.runner.produced_steadily(len(outputs), STEP_S):
            self.counts["told by number"] += 1
        else:
            self.runner.produced(outputs, {}, STEP_S)
        for job in result.sampled:
            if not job.ended and job.output >= job.outputs:
                self._end(job, Status.FINISHED)

    def check_plan(self, plan: Plan) -> None:
        """What must hold of a plan under every policy."""
        assert len(set(plan.admit)) == len(plan.admit)
        assert len(set(plan.preempt)) == len(plan.preempt)
        assert all(i in self.waiting and self.waiting[i].ready for i in plan.admit)
        running = {job.id: job for job in self.running}
        assert all(i in running for i in plan.preempt)
        offered = [self.waiting[i].priority for i in plan.admit]
        for request_id in plan.preempt if plan.admit else ():
            victim = running[request_id]
            assert not self.by_class or min(offered) < victim.priority, "displaced for its equal"
            victim.displaced += 1

    def check_displacement(self, plan: Plan, dropped: list[Job], admitted: list[Job]) -> None:
        """Nobody is displaced in vain: somebody who stands above it has started instead."""
        self.counts["displaced"] += len(dropped) if plan.admit else 0
        self.counts["relieved"] += 0 if plan.admit else len(dropped)
        for victim in dropped if plan.admit else ():
            started = [job.priority for job in admitted]
            assert started and (not self.by_class or min(started) < victim.priority), (
                f"{victim.id} went in vain for {plan.admit}"
            )

    def check_columns(self, step: Step) -> None:
        """The runner's columns against the engine's books."""
        jobs = {job.id: job for job in (*self.waiting.values(), *self.running)}
        ready = sorted(job.id for job in self.waiting.values() if job.ready)
        assert sorted(step.waiting.request_id) == ready
        assert sorted(step.running.request_id) == sorted(job.id for job in self.running)
        for rows in (step.waiting, step.running):
            found = [jobs[request_id] for request_id in rows.request_id]
            self._compare(rows, found)

    def _compare(self, rows: Requests, jobs: list[Job]) -> None:
        expected: dict[str, list[float]] = {
            "prompt_tokens": [j.prompt for j in jobs],
            "max_tokens": [j.outputs for j in jobs],
            "priority": [j.priority for j in jobs],
            "ready": [True for _ in jobs],
            "arrival_s": [j.arrival_s for j in jobs],
            "computed_tokens": [j.computed for j in jobs],
            "output_tokens": [j.output for j in jobs],
            "kv_blocks": [self._blocks(j.computed) for j in jobs],
            "preemptions": [j.preemptions for j in jobs],
            "status": [int(Status.RUNNING if j.running else Status.WAITING) for j in jobs],
            "first_scheduled_s": [j.first_scheduled_s for j in jobs],
            "first_token_s": [j.first_token_s for j in jobs],
            "last_token_s": [j.last_token_s for j in jobs],
        }
        for name, values in expected.items():
            np.testing.assert_array_equal(getattr(rows, name), values, err_msg=name)
