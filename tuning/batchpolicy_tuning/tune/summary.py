"""What a study found, in words and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchpolicy_tuning.tune.judging import missed_by, off_by, shown
from batchpolicy_tuning.tune.records import Outcome, TargetResult, TrialRecord, Value
from batchpolicy_tuning.tune.result import (
    ComparisonResult,
    FinalistResult,
    StudyResult,
)

_SHOWN = 8
_BROKEN = (Outcome.FAILED, Outcome.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Rows:
    """A table for the terminal."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def heading(result: StudyResult) -> str:
    """How many trials ended how."""
    counts = ", ".join(f"{n} {name}" for name, n in result.outcomes.items())
    return f"{result.name}: {len(result.trials)} trials: {counts}"


def setting_text(setting: Mapping[str, Value]) -> str:
    """A setting in one line."""
    return ", ".join(f"{k} {value_text(v)}" for k, v in setting.items())


def trial_text(result: StudyResult, number: int) -> str:
    """The setting of a trial in one line: what was searched, or the policy file and limits."""
    one = next(trial for trial in result.trials if trial.number == number)
    return f"{_origin(one)}{_short(one)}"


def value_text(value: Value) -> str:
    """The value of a parameter, numbers to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def comparison_text(one: ComparisonResult) -> str:
    """The gain in an objective with its interval."""
    if one.improvement is None or one.low is None or one.high is None:
        return f"{one.verdict}{f', {one.reason}' if one.reason else ''}"
    low, high = one.relative_low, one.relative_high
    if low is not None and high is not None and one.baseline:
        part = one.improvement / abs(one.baseline)
        return f"{one.verdict}: {part:+.1%} [{low:+.1%}, {high:+.1%}]"
    return f"{one.verdict}: {one.improvement:+.4g} [{one.low:+.4g}, {one.high:+.4g}]"


def target_text(one: TargetResult) -> str:
    """A target, what was measured, and how much room there is."""
    if not one.met:
        return missed_by(one)
    value = "not measured" if one.value is None else shown(one.target, one.value)
    return f"{one.target}: {value}, {-one.miss:.0%} to spare"


def trial_rows(result: StudyResult) -> Rows:
    """The best trials, or those nearest to the targets, and all that were given."""
    goal = result.objectives[0]
    sign = -1.0 if goal.direction == "maximize" else 1.0
    ranked = sorted(
        (one for one in result.trials if goal.key in one.values),
        key=lambda one: (
            one.outcome != "feasible",
            one.outcome == "pruned",
            sign * one.values[goal.key] if one.outcome == "feasible" else one.worst_miss,
        ),
    )
    picked = ranked[:_SHOWN]
    picked += [one for one in ranked[_SHOWN:] if one.origin != "sampled"]
    # What failed has no values to be ranked by; the first of a kind says why.
    broken = [one for one in result.trials if one.outcome in _BROKEN and one not in picked]
    picked += [one for one in broken if one.origin != "sampled" or one is broken[0]]
    columns = ["trial", *(o.key for o in result.objectives), "outcome", "setting"]
    return Rows(columns, [_row(result, one) for one in picked])


def _row(result: StudyResult, one: TrialRecord) -> list[str]:
    values = [
        shown(o.key, one.values[o.key]) if o.key in one.values else "-" for o in result.objectives
    ]
    outcome = one.outcome.value
    if outcome == "infeasible":
        outcome += f", {off_by(one.worst_miss)}"
    elif one.outcome in _BROKEN:
        outcome += f": {one.reason}"
    return [str(one.number), *values, outcome, f"{_origin(one)}{_short(one)}"]


def _origin(one: TrialRecord) -> str:
    if one.origin == "sampled":
        return ""
    return f"{one.label}, " if one.origin == "given" else f"baseline, {one.setting['policy']}, "


def _short(one: TrialRecord) -> str:
    if one.origin != "sampled":
        names = ("max_num_seqs", "max_num_batched_tokens")
        return setting_text({k: one.setting[k] for k in names if k in one.setting})
    told = {name.rpartition(":")[2]: value for name, value in one.parameters.items()}
    return setting_text(told)


def finalist_rows(result: StudyResult) -> Rows:
    """The baseline and the finalists on what is held out."""
    columns = ["trial"]
    for objective in result.objectives:
        columns += [objective.key, "gain, mean of slices, 95%"]
    rows: list[list[str]] = []
    base: Sequence[FinalistResult] = [] if result.baseline is None else [result.baseline]
    for one in (*base, *result.finalists):
        cells: list[str] = []
        for i, objective in enumerate(result.objectives):
            value = one.values.get(objective.key)
            cells.append("-" if value is None else shown(objective.key, value))
            cells.append(comparison_text(one.comparisons[i]) if one.comparisons else "")
        name = f"{one.trial}{' baseline' if one is result.baseline else ''}"
        rows.append([name, *cells, "all met" if not one.reason else one.reason])
    return Rows([*columns, "targets"], rows)
