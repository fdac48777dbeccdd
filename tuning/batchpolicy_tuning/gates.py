"""Gates: changes against the baseline that must not be exceeded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from batchpolicy.errors import ConfigError
from batchpolicy.requests import FloatArray
from batchpolicy.targets import Gate
from batchpolicy_tuning.metrics import METRICS, Metric
from batchpolicy_tuning.statistics import (
    FEWEST_PAIRS,
    LEVEL,
    changed_by,
    differences,
    holm,
)
from batchpolicy_tuning.turned_signs import mean_interval, p_negative, ratio_interval

if TYPE_CHECKING:
    from batchpolicy_tuning.ab import AtLoad, Results

MOST_UNFINISHED = 0.01
"""Part of an arm's requests that may be left when its runs end."""
_METRIC = {metric.key: metric for metric in METRICS}


class Outcome(StrEnum):
    """What became of a gate."""

    PASSED = "passed"
    VIOLATED = "violated"
    NOT_SHOWN = "not shown"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Judged:
    """A gate of one policy at one load."""

    gate: Gate
    outcome: Outcome
    change: float = float("nan")
    """Of the mean, as the gate counts it: a part of the baseline, or points."""
    limit: float = float("nan")
    """The change is within this at 95%, by a one-sided interval without Holm's adjustment."""
    p: float = float("nan")
    """Of a change within the bound, adjusted by Holm over the gates."""
    reason: str = ""

    def __str__(self) -> str:
        if self.outcome is Outcome.INVALID:
            return f"gate {self.gate}: invalid, {self.reason}"
        if self.reason:
            return f"gate {self.gate}: {self.outcome}, {self.reason}"
        unit = "%" if self.gate.is_relative else " points"
        side = "at most" if self.gate.at_most else "at least"
        return (
            f"gate {self.gate}: {self.outcome}, changed by {100.0 * self.change:+.1f}{unit}, "
            f"{side} {100.0 * self.limit:+.1f}{unit} at 95%, p {self.p:.3f}"
        )


def check_gates(gates: Iterable[Gate], classes: Iterable[str]) -> None:
    """Refuse gates on what a comparison does not measure, before any run.

    Raises
    ------
    ConfigError
        With all of them.
    """
    classes = list(classes)
    faults: list[str] = []
    for gate in gates:
        metric = _METRIC.get(gate.key)
        if metric is None:
            faults.append(f"{gate}: not measured here. Measured: {', '.join(_METRIC)}")
        elif gate.scope_kind == "tenant":
            faults.append(f"{gate}: metrics are taken by class, not by tenant")
        elif gate.scope_kind and not metric.by_class:
            faults.append(f"{gate}: {gate.key} is taken over all requests only, leave @class out")
        elif gate.scope_kind and gate.scope_name not in classes:
            known = ", ".join(filter(None, classes)) or "none"
            faults.append(f"{gate}: the workload has no such class. Classes: {known}")
    if faults:
        raise ConfigError("gates that cannot be judged:\n" + "\n".join(f"  {f}" for f in faults))


def invalid(results: Results, at: AtLoad, arm: int) -> list[str]:
    """Why the runs of an arm and the baseline cannot carry a verdict; empty when they can.

    They cannot when nothing queued, under 8 pairs, when over 1% of an arm's requests
    had not ended with its runs, or when a policy or the adapter failed in any step.
    Requests that a policy refused or let expire have ended: they stay in the metrics.
    """
    found: list[str] = []
    if not at.queued(arm):
        found.append("no request ever waited")
    if results.plan.pairs < FEWEST_PAIRS:
        found.append(f"{results.plan.pairs} pairs, {FEWEST_PAIRS} needed")
    for i in (0, arm):
        label, runs = results.plan.arms[i].label, at.runs[i]
        left = sum(run.unfinished for run in runs) / results.requests
        if left > MOST_UNFINISHED:
            found.append(f"{left:.1%} of the requests of {label} never ended")
        faults = sum(run.faults for run in runs)
        if faults:
            found.append(f"{label} failed {faults:,} times")
    return found


def failed_throughout(results: Results) -> list[str]:
    """What to say of policies that failed in every replication at a load: nothing shows them."""
    return [
        f"{arm.label} failed in every replication at load {at.load:g}: its figures are those of "
        "order of arrival, and no measurement of it"
        for at in results.loads
        for arm, runs in zip(results.plan.arms, at.runs, strict=True)
        if all(run.faults > run.predictor_faults for run in runs)
    ]


def judge(results: Results, at: AtLoad, arm: int) -> list[Judged]:
    """The gates of a policy at one load.

    A gate is *passed* when a one-sided test at 5% shows that the change is within its
    bound, *violated* when one shows that it is beyond, and *not shown* when neither
    does: that, too, is no pass. Each kind of test is adjusted by Holm over the gates.
    """
    gates = results.plan.gates
    why = "; ".join(invalid(results, at, arm))
    if why:
        return [Judged(gate, Outcome.INVALID, reason=why) for gate in gates]
    tested = [_Tested.of(at, arm, gate) for gate in gates]
    within = holm([one.p_within for one in tested])
    beyond = holm([one.p_beyond for one in tested])
    return [
        one.judged(p_within, p_beyond)
        for one, p_within, p_beyond in zip(tested, within, beyond, strict=True)
    ]


def is_failed(judged: Sequence[Judged]) -> bool:
    """Whether any was violated, or measured and not shown."""
    return any(one.outcome in (Outcome.VIOLATED, Outcome.NOT_SHOWN) for one in judged)


def is_invalid(judged: Sequence[Judged]) -> bool:
    """Whether any could not be measured."""
    return any(one.outcome is Outcome.INVALID for one in judged)


@dataclass(frozen=True, slots=True)
class _Tested:
    gate: Gate
    change: float
    limit: float
    p_within: float
    p_beyond: float
    pairs: int
    endless: int

    @classmethod
    def of(cls, at: AtLoad, arm: int, gate: Gate) -> _Tested:
        metric = _METRIC[gate.key]
        scope = gate.scope_name if gate.scope_kind else None
        pairs = np.array([at.values(i, scope, metric) for i in (0, arm)])
        pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
        n = pairs.shape[1]
        if n < FEWEST_PAIRS:
            return cls(gate, np.nan, np.nan, 1.0, 1.0, n, 0)
        # Signed so that what the gate forbids is positive.
        sign = 1.0 if gate.at_most else -1.0
        difference = differences(pairs[0], pairs[1])
        beyond = sign * changed_by(pairs[0], difference, gate.change, metric.in_points)
        endless = int(np.isinf(pairs).any(axis=0).sum())
        change, limit = (
            (np.nan, np.nan) if endless else _change(pairs[0], difference, sign, metric)
        )
        # A change that is the bound itself in every pair is within it.
        is_bound = not endless and not beyond.any()
        p_within = 0.0 if is_bound else float(p_negative(beyond))
        return cls(gate, change, limit, p_within, float(p_negative(-beyond)), n, endless)

    def judged(self, p_within: float, p_beyond: float) -> Judged:
        if self.pairs < FEWEST_PAIRS:
            reason = f"{self.pairs} pairs have a value, {FEWEST_PAIRS} needed"
            return Judged(self.gate, Outcome.INVALID, reason=reason)
        outcome = Outcome.NOT_SHOWN
        if p_within <= LEVEL:
            outcome = Outcome.PASSED
        elif p_beyond <= LEVEL:
            outcome = Outcome.VIOLATED
        reason = f"without end in {self.endless} of {self.pairs} pairs" if self.endless else ""
        return Judged(self.gate, outcome, self.change, self.limit, p_within, reason)


def _change(
    baseline: FloatArray, difference: FloatArray, sign: float, metric: Metric
) -> tuple[float, float]:
    """The change of the mean and its one-sided limit; NaN where the baseline has a 0."""
    confidence = 1.0 - 2.0 * LEVEL
    if metric.in_points:
        low, high = mean_interval(difference, confidence)
        change = float(difference.mean())
    elif (baseline > 0.0).all():
        low, high = ratio_interval(difference, baseline, confidence)
        change = float(difference.mean() / baseline.mean())
    else:
        return np.nan, np.nan
    return change, high if sign > 0.0 else low
