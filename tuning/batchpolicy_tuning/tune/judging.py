"""From measured values to an outcome."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from batchpolicy.metrics import METRICS, Measure
from batchpolicy.quantities import format_seconds
from batchpolicy.targets import Measurand, Target
from batchpolicy_tuning.tune.records import Outcome, TargetResult, TrialRecord

MOST_MISS = 1000.0
"""What cannot be measured, or has no end, misses its bound by so much."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound that a setting must keep."""

    text: str
    """As people write it."""
    key: str
    """What of the values it bounds."""
    bound: float
    at_most: bool

    @classmethod
    def of(cls, target: Target) -> Limit:
        """The limit that a target sets."""
        return cls(str(target), str(target.measurand), target.bound, target.at_most)

    def judge(self, values: Mapping[str, float]) -> TargetResult:
        """How values stand to it; what was not measured never meets it."""
        value = values.get(self.key, math.nan)
        if math.isnan(value):
            return TargetResult(
                target=self.text, value=None, bound=self.bound, met=False, miss=MOST_MISS
            )
        beyond = value - self.bound if self.at_most else self.bound - value
        miss = beyond / (abs(self.bound) or 1.0)
        return TargetResult(
            target=self.text,
            value=value,
            bound=self.bound,
            met=beyond <= 0.0,
            miss=max(min(miss, MOST_MISS), -MOST_MISS),
        )


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be improved."""

    key: str
    high_is_good: bool

    @classmethod
    def of(cls, measurand: Measurand) -> Goal:
        """The goal that an objective sets."""
        return cls(str(measurand), not measurand.low_is_good)

    def loss(self, values: Mapping[str, float]) -> float:
        """Lower is better; NaN where it was not measured."""
        value = values.get(self.key, math.nan)
        return -value if self.high_is_good else value


@dataclass(frozen=True, slots=True)
class Verdict:
    """What values say of a setting."""

    outcome: Outcome
    reason: str
    targets: tuple[TargetResult, ...]


def judge(limits: Sequence[Limit], goals: Sequence[Goal], values: Mapping[str, float]) -> Verdict:
    """Feasible, infeasible and by how much, or failed where an objective has no value."""
    results = tuple(limit.judge(values) for limit in limits)
    lacking = [goal.key for goal in goals if not math.isfinite(goal.loss(values))]
    if lacking:
        said = ", ".join(f"{key} {_no_value(values.get(key, math.nan))}" for key in lacking)
        return Verdict(Outcome.FAILED, said, results)
    missed = [one for one in results if not one.met]
    if missed:
        return Verdict(Outcome.INFEASIBLE, "; ".join(missed_by(one) for one in missed), results)
    return Verdict(Outcome.FEASIBLE, "", results)


def _no_value(value: float) -> str:
    return "could not be measured" if math.isnan(value) else "has no end: requests were not served"


def missed_by(result: TargetResult) -> str:
    """A target and how far it is from being met."""
    if result.value is None:
        return f"{result.target}: could not be measured"
    if math.isinf(result.value):
        return f"{result.target}: no end, requests were not served"
    return f"{result.target}: {shown(result.target, result.value)}, {off_by(result.miss)}"


def off_by(miss: float) -> str:
    """How far a bound was missed."""
    return f"{miss:.1%} off" if miss < 1.0 else f"{1.0 + miss:.3g} times the bound"


def shown(text: str, value: float) -> str:
    """A value of what ``text`` names, a measurand or a target, for people."""
    name = text.split("@")[0].split("<")[0].split(">")[0].split(".")[0]
    measure = METRICS[name].measure if name in METRICS else None
    if math.isnan(value):
        return "not measured"
    match measure:
        case Measure.SECONDS:
            return format_seconds(value) if value else "0 s"
        case Measure.SHARE:
            return f"{100.0 * value:.2f}%"
        case Measure.RATE:
            unit = "tok/s" if name == "throughput" else "req/s"
            return f"{value:,.0f} {unit}" if value >= 1000.0 else f"{value:.4g} {unit}"
        case _:
            return f"{value:.4g}" if abs(value) < 1000.0 else f"{value:,.0f}"


def best_of(goals: Sequence[Goal], records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The feasible trial that is best in the first objective, the earliest of equals."""
    feasible = [one for one in records if one.outcome is Outcome.FEASIBLE]
    return min(feasible, key=lambda one: goals[0].loss(one.values), default=None)


def closest_of(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The infeasible trial whose farthest target is nearest; ties by all misses together."""
    missed = [one for one in records if one.outcome is Outcome.INFEASIBLE]
    return min(missed, key=lambda one: (one.worst_miss, one.total_miss), default=None)


def binding(record: TrialRecord) -> TargetResult:
    """The target that is farthest from being met."""
    return max(record.targets, key=lambda one: one.miss)


def pareto(goals: Sequence[Goal], records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The feasible trials that no other one beats in all objectives, best in the first first."""
    feasible = [one for one in records if one.outcome is Outcome.FEASIBLE]
    losses = {one.number: [goal.loss(one.values) for goal in goals] for one in feasible}

    def beaten(one: TrialRecord) -> bool:
        mine = losses[one.number]
        return any(
            all(b <= a for a, b in zip(mine, theirs, strict=True)) and theirs != mine
            for theirs in losses.values()
        )

    front = [one for one in feasible if not beaten(one)]
    return sorted(front, key=lambda one: losses[one.number])
