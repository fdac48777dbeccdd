"""The tables of a study: gains with intervals, targets, classes and tenants, trials."""

from __future__ import annotations

from typing import NamedTuple

from batchpolicy.quantities import format_seconds
from batchpolicy_tuning.page import forest
from batchpolicy_tuning.tune.judging import missed_by, shown
from batchpolicy_tuning.tune.page.arms import Arm
from batchpolicy_tuning.tune.page.looks import LOOKS, Look, bound_by
from batchpolicy_tuning.tune.records import Outcome, TargetResult, TrialRecord
from batchpolicy_tuning.tune.result import ComparisonResult, ScopeResult, StudyResult
from batchpolicy_tuning.tune.summary import comparison_text, target_text, trial_text


def gains(result: StudyResult, arms: list[Arm]) -> forest.Forest | None:
    """Finalists against the baseline, held out; None where there are none."""
    told = [
        (arm, one) for arm in arms if arm.held_out is not None for one in arm.held_out.comparisons
    ]
    if not told:
        return None
    reach = forest.reach_of(abs(end) for _, one in told for end in _ends(one))
    return forest.Forest(
        "Against the baseline, held out",
        forest.ticks(reach),
        [
            forest.Group(
                objective.key,
                arms[0].value(objective.key),
                [_line(arm, one, reach) for arm, one in told if one.objective == objective.key],
            )
            for objective in result.objectives
        ],
    )


def _line(arm: Arm, one: ComparisonResult, reach: float) -> forest.Line:
    mood = one.verdict if one.verdict in ("better", "worse") else "dim"
    text = comparison_text(one).removeprefix(f"{one.verdict}: ")
    return forest.Line(
        arm.i,
        arm.label,
        arm.value(one.objective),
        text if one.verdict in text or mood != "dim" else f"{one.verdict}: {text}",
        mood,
        one.verdict,
        forest.mark(_ends(one), reach),
    )


def _ends(one: ComparisonResult) -> list[float]:
    """Gain and both ends of its interval, in percent of the baseline."""
    ends = (one.improvement, one.relative_low, one.relative_high)
    if None in ends or not one.baseline:
        return []
    gain, low, high = (end for end in ends if end is not None)
    return [100.0 * gain / abs(one.baseline), 100.0 * low, 100.0 * high]


class Kept(NamedTuple):
    """A target under one setting."""

    arm: int
    label: str
    text: str
    met: bool | None


class TargetRow(NamedTuple):
    """One target: how many trials met it, and how the arms stand to it."""

    target: str
    met: int
    measured: int
    bound: int
    binding: bool
    kept: list[Kept]


def targets(result: StudyResult, arms: list[Arm]) -> list[TargetRow]:
    """Each target of the study."""
    full = [
        one
        for one in result.trials
        if one.outcome in (Outcome.FEASIBLE, Outcome.INFEASIBLE) and one.targets
    ]
    bounds = [found.target for one in full if (found := bound_by(one)) is not None]
    return [
        TargetRow(
            text,
            sum(t.met for one in full for t in one.targets if t.target == text),
            len(full),
            bounds.count(text),
            result.binding is not None and result.binding.target == text,
            [_kept(arm, arm.target(text)) for arm in arms],
        )
        for text in result.targets
    ]


def _kept(arm: Arm, one: TargetResult | None) -> Kept:
    if one is None:
        return Kept(arm.i, arm.label, arm.outcome or "not run", None)
    return Kept(arm.i, arm.label, target_text(one).removeprefix(f"{one.target}: "), one.met)


class UnderArm(NamedTuple):
    """A class or tenant under one setting."""

    arm: int
    label: str
    attainment: str
    change: str
    """Of the attainment against the baseline, in points."""
    less: bool
    ttft_p50: str
    ttft_p99: str
    tpot_p99: str
    longest_wait: str


class ScopeRow(NamedTuple):
    """A class or tenant under all settings."""

    kind: str
    name: str
    requests: int
    arms: list[UnderArm]


def scopes(arms: list[Arm]) -> list[ScopeRow]:
    """All requests, classes, then tenants, as held out; none where nothing was."""
    told = [(arm, arm.held_out.scopes) for arm in arms if arm.held_out and arm.held_out.scopes]
    if not told:
        return []
    first = {(one.kind, one.name): one for one in told[0][1]}
    return [
        ScopeRow(
            kind,
            name if kind != "all" else "all requests",
            scope.requests,
            [
                _under(arm, one, scope if told[0][0].i == 0 else None)
                for arm, found in told
                for one in found
                if (one.kind, one.name) == (kind, name)
            ],
        )
        for (kind, name), scope in first.items()
    ]


def _under(arm: Arm, one: ScopeResult, base: ScopeResult | None) -> UnderArm:
    change = 0.0
    compared = arm.i > 0 and base is not None
    if compared and base and one.attainment is not None and base.attainment is not None:
        change = 100.0 * (one.attainment - base.attainment)
    rounded = f"{change:+.1f}".replace("-", "\u2212")
    return UnderArm(
        arm.i,
        arm.label,
        "-" if one.attainment is None else f"{one.attainment:.1%}",
        rounded if abs(change) >= 0.05 else "=" if compared and one.attainment is not None else "",
        change <= -0.05,
        _seconds(one.ttft_p50_s),
        _seconds(one.ttft_p99_s),
        _seconds(one.tpot_p99_s),
        _seconds(one.longest_wait_s),
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value == float("inf"):
        return "no end"
    return format_seconds(value) if value else "0 s"


class TrialRow(NamedTuple):
    """One trial in the table of all."""

    number: int
    look: Look
    outcome: str
    setting: str
    values: list[str]
    why: str
    """The target that bound it, or why there is no result."""
    wall: str
    arm: int | None
    """Of the settings that are told apart."""


def trials(result: StudyResult, arms: list[Arm]) -> list[TrialRow]:
    """All trials in their order."""
    by_number = {arm.trial.number: arm.i for arm in arms if arm.trial is not None}
    return [
        TrialRow(
            one.number,
            LOOKS[one.outcome],
            one.outcome.value,
            trial_text(result, one.number),
            [
                shown(o.key, one.values[o.key]) if o.key in one.values else "-"
                for o in result.objectives
            ],
            _why(one),
            format_seconds(one.wall_s) if one.wall_s else "",
            by_number.get(one.number),
        )
        for one in result.trials
    ]


def _why(one: TrialRecord) -> str:
    if one.outcome is Outcome.PRUNED:
        return f"{one.reason} after {len(one.parts)} of {one.planned} slices".strip()
    bound = bound_by(one)
    if one.outcome is not Outcome.INFEASIBLE or bound is None:
        return one.reason
    others = sum(not target.met for target in one.targets) - 1
    return missed_by(bound) + (f"; and {others} more missed" if others else "")
