"""Runs that are written down step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.engine import Engine, EngineLimits, Observer, Run, StepRecord
from batchpolicy.requests import Status
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.cases.check_specs import CHECKS
from batchpolicy_tuning.cases.checks import JUDGES
from batchpolicy_tuning.cases.clock import ReferenceClock
from batchpolicy_tuning.cases.judging import Evidence
from batchpolicy_tuning.cases.outcome import Failure
from batchpolicy_tuning.cases.schema import Timing
from batchpolicy_tuning.cases.setting import Setting
from batchpolicy_tuning.cases.trace import Trace, trace_of

LIMITS = EngineLimits(max_num_seqs=2, max_num_batched_tokens=100, kv_blocks=20, kv_block_tokens=10)
FCFS = PolicyConfig(policy=PolicySpec(name="fcfs"))


class Step(NamedTuple):
    """Who computes how much from when on; a step takes a second unless it says otherwise."""

    start_s: float
    tokens: Mapping[str, int]
    preempted: tuple[str, ...] = ()
    free: int | None = None
    waiting: int = 0
    duration_s: float = 1.0


def request(id: str, prompt: int, output: int, at: float = 0.0, **facts: Any) -> WorkloadRequest:
    given = {"max_tokens": output, **facts}
    return WorkloadRequest(
        id=id, arrival_s=at, prompt_tokens=prompt, output_tokens=output, **given
    )


class Scripted(Engine):
    """Does what is written down, and keeps plain books of it.

    A request emits a token at the end of a step in which it has computed its prompt and
    all tokens that it has emitted. Ends other than the last token are given by id; so is
    what the run is to say against the truth.
    """

    name: ClassVar[str] = "scripted"
    capabilities: ClassVar[frozenset[str]] = frozenset({"preemption"})

    def __init__(
        self,
        steps: Sequence[Step],
        ends: Mapping[str, tuple[Status, float]] | None = None,
        lies: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.steps = steps
        self.ends = dict(ends or {})
        self.lies = lies or {}

    @property
    @override
    def version(self) -> str:
        return "scripted 1"

    @override
    def replay(
        self,
        workload: Workload,
        config: PolicyConfig | None,
        limits: EngineLimits,
        cost: StepCost,
        *,
        seed: int = 0,
        max_steps: int = 10_000_000,
        observer: Observer | None = None,
    ) -> Run:
        by_id = {r.id: r for r in workload.requests}
        kv = dict.fromkeys(by_id, 0)
        most = dict.fromkeys(by_id, 0)
        emitted: dict[str, list[float]] = {i: [] for i in by_id}
        started: dict[str, float] = {}
        ended = dict(self.ends)
        preemptions, again = dict.fromkeys(by_id, 0), dict.fromkeys(by_id, 0)
        for index, step in enumerate(self.steps):
            end_s = step.start_s + step.duration_s
            for i in step.preempted:
                preemptions[i] += 1
                kv[i] = 0
            for i, n in step.tokens.items():
                started.setdefault(i, step.start_s)
                again[i] += max(0, min(most[i], kv[i] + n) - kv[i])
                kv[i] += n
                most[i] = max(most[i], kv[i])
            held = sum(
                -(-kv[i] // limits.kv_block_tokens)
                for i in by_id
                if i not in ended or ended[i][1] > step.start_s
            )
            if observer is not None:
                observer(
                    StepRecord(
                        index=index,
                        start_s=step.start_s,
                        duration_s=step.duration_s,
                        tokens=step.tokens,
                        preempted=step.preempted,
                        running=len(step.tokens),
                        waiting=step.waiting,
                        free_kv_blocks=limits.kv_blocks - held if step.free is None else step.free,
                    )
                )
            for i in step.tokens:
                r = by_id[i]
                if kv[i] == r.prompt_tokens + len(emitted[i]):
                    emitted[i].append(end_s)
                    if len(emitted[i]) == min(r.output_tokens, r.max_tokens):
                        ended[i] = (Status.FINISHED, end_s)
        nothing = (Status.WAITING, math.nan)

        def column(name: str, values: Mapping[str, Any], kind: type) -> Any:
            return np.array([self.lies.get(name, {}).get(i, values[i]) for i in by_id], dtype=kind)

        def gap(times: list[float]) -> float:
            return max((b - a for a, b in pairwise(times)), default=0.0)

        return Run(
            workload=workload,
            engine="scripted",
            policy="fcfs",
            status=column("status", {i: ended.get(i, nothing)[0] for i in by_id}, np.int64),
            first_scheduled_s=column(
                "first_scheduled_s", {i: started.get(i, math.nan) for i in by_id}, np.float64
            ),
            first_token_s=column(
                "first_token_s",
                {i: emitted[i][0] if emitted[i] else math.nan for i in by_id},
                np.float64,
            ),
            finished_s=column(
                "finished_s", {i: ended.get(i, nothing)[1] for i in by_id}, np.float64
            ),
            longest_gap_s=column("longest_gap_s", {i: gap(emitted[i]) for i in by_id}, np.float64),
            output_tokens=column("output_tokens", {i: len(emitted[i]) for i in by_id}, np.int64),
            cached_tokens=column("cached_tokens", dict.fromkeys(by_id, 0), np.int64),
            preemptions=column("preemptions", preemptions, np.int64),
            recomputed_tokens=column("recomputed_tokens", again, np.int64),
            steps=len(self.steps),
            end_s=max((s.start_s + s.duration_s for s in self.steps), default=0.0),
            peak_waiting=0,
        )


def played(
    requests: Sequence[WorkloadRequest],
    steps: Sequence[Step],
    ends: Mapping[str, tuple[Status, float]] | None = None,
    lies: Mapping[str, Mapping[str, float]] | None = None,
    limits: EngineLimits = LIMITS,
) -> Trace:
    """The trace of what is written down."""
    records: list[StepRecord] = []
    workload = Workload("w", tuple(requests))
    engine = Scripted(steps, ends, lies)
    run = engine.replay(workload, FCFS, limits, CLOCK, observer=records.append)
    return trace_of(run, records, limits)


CLOCK = ReferenceClock(Timing(step_base_s=1.0))


def judged(trace: Trace, again: Trace | None = None, **check: Any) -> Failure | None:
    """What a check, given as in a file, finds in a run."""
    setting = Setting(trace.run.workload, trace.limits, FCFS, CLOCK)
    evidence = Evidence(
        setting=setting,
        trace=trace,
        again=lambda: again or trace,
        seconds_per_decision=lambda queue: queue * 1e-6,
        policy_cpu_s=lambda: 0.5,
    )
    spec = CHECKS[check["kind"]].model_validate(check)
    return JUDGES[spec.kind](spec, evidence)
