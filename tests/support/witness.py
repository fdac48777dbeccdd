"""An engine that writes down every wait, to hold bounds and certificates against."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field
from typing_extensions import override

from batchpolicy.config import Bounds
from batchpolicy.policy import Policy, Step
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests, Status
from tests.support.mini_engine import Job, MiniEngine


class Adversary(Policy):
    """Another order, other tiers and another mask in each step, drawn from a seed."""

    seed: int = Field(0, ge=0)

    def _drawn(self, rows: Requests, step: Step, what: int) -> FloatArray:
        # Pointwise and repeatable: a hash of the row and the step.
        mixed = (rows.seq * 7919 + step.index * 104_729 + self.seed * 31 + what) % 1_000_003
        return (mixed * 48_271 % 1_000_003) / 1_000_003.0

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        latest: FloatArray = requests.seq.astype(np.float64)
        return latest if self.seed % 3 == 0 else self._drawn(requests, step, 1)

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        return (3 * self._drawn(requests, step, 2)).astype(np.int64) if self.seed % 2 else None

    @override
    def admissible(self, waiting: Requests, step: Step) -> BoolArray | None:
        if self.seed % 5 < 2:
            return None
        return np.asarray(self._drawn(waiting, step, 3) < 0.5)


@dataclass(slots=True, eq=False)
class Run:
    """From a start to the end or a preemption."""

    job: Job
    was_late: bool
    start_s: float
    end_s: float = math.inf

    def served_s(self, from_s: float, to_s: float = math.inf) -> float:
        """How long it ran between two times."""
        return max(min(self.end_s, to_s) - max(self.start_s, from_s), 0.0)


@dataclass(slots=True, eq=False)
class Wait:
    """From an arrival or a preemption to the start, the end, or the last step."""

    job: Job
    since_s: float
    late_s: float = math.nan
    """First step at which it was past the bound and could start."""
    gaps: int = 0
    """Times that it could not start any more although it was late."""
    ran: list[Run] = field(default_factory=list)
    """What ran in that step."""
    before: list[Run] = field(default_factory=list)
    """What started from that step on."""
    started_s: float = math.nan
    idle: int = 0
    """Steps since then in which nobody ran, though it could have started."""


class Witness(MiniEngine):
    """Writes down all ``waits`` and ``runs``."""

    def __init__(self, policy: Policy, bounds: Bounds, **shape: object) -> None:
        super().__init__(policy, bounds=bounds, **shape)  # type: ignore[arg-type]
        self.bounds = bounds
        self.waits: list[Wait] = []
        self.now_waits: dict[str, Wait] = {}
        self.runs: list[Run] = []
        self.now_runs: dict[str, Run] = {}
        self.passed_by: dict[str, list[Job]] = {}
        """Later arrivals that started before each request first did, while it could have."""

    def seq(self, job: Job) -> tuple[int, int]:
        """Order of submission."""
        return job.arrives, int(job.id[1:])

    @override
    def _enter(self) -> None:
        before = set(self.waiting)
        super()._enter()
        for job in self.waiting.values():
            if job.id not in before and job.id not in self.now_waits:
                self._begin(job)
        for wait in self.now_waits.values():
            if not wait.job.ready:
                # Whoever could not start is late anew once it can.
                wait.gaps += not math.isnan(wait.late_s)
                wait.late_s = math.nan
            elif math.isnan(wait.late_s) and self._is_late(wait):
                wait.late_s = self.now_s
                wait.ran = list(self.now_runs.values())
                wait.before = []

    def _is_late(self, wait: Wait) -> bool:
        most = self.bounds.max_overtakes
        overtaken = len(self.passed_by[wait.job.id])
        return self.now_s - wait.since_s >= self.bounds.max_wait_s or (
            most is not None and overtaken >= most
        )

    def _begin(self, job: Job) -> None:
        self.passed_by.setdefault(job.id, [])
        wait = Wait(job, self.now_s)
        self.waits.append(wait)
        self.now_waits[job.id] = wait

    @override
    def _preempt(self, job: Job) -> Job:
        self.now_runs.pop(job.id).end_s = self.now_s
        super()._preempt(job)
        self._begin(job)
        return job

    @override
    def _end(self, job: Job, status: Status) -> None:
        if job.running:
            self.now_runs.pop(job.id).end_s = self.now_s
        self.now_waits.pop(job.id, None)
        super()._end(job, status)

    @override
    def _admit(self, ids: list[str], left: int, tokens: dict[str, int]) -> list[Job]:
        first = {i for i in ids if math.isnan(self.waiting[i].first_scheduled_s)}
        admitted = super()._admit(ids, left, tokens)
        for job in admitted:
            wait = self.now_waits.pop(job.id)
            wait.started_s = self.now_s
            run = Run(job, not math.isnan(wait.late_s), self.now_s)
            self.runs.append(run)
            self.now_runs[job.id] = run
            for other in self.now_waits.values():
                if not math.isnan(other.late_s):
                    other.before.append(run)
        for job in admitted:
            if job.id in first:
                for other in self.waiting.values():
                    never = math.isnan(other.first_scheduled_s)
                    if never and other.ready and self.seq(other) < self.seq(job):
                        self.passed_by[other.id].append(job)
        return admitted

    @override
    def _compute(self, tokens: dict[str, int]) -> None:
        if not self.running:
            for wait in self.now_waits.values():
                wait.idle += not math.isnan(wait.late_s)
        super()._compute(tokens)

    def certified_s(self, wait: Wait) -> float:
        """The bound on a wait once it was late: the service of all that went before it.

        Those that ran then serve side by side, those that started later one by one at worst.
        """
        rest = max((run.served_s(wait.late_s) for run in wait.ran), default=0.0)
        return rest + sum(run.served_s(wait.late_s) for run in wait.before)
