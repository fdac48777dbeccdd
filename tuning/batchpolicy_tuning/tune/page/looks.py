"""How trials look by outcome: told apart by colour and by shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchpolicy.metrics import METRICS, Measure
from batchpolicy_tuning.page import marks
from batchpolicy_tuning.tune.judging import missed_by, shown
from batchpolicy_tuning.tune.records import Outcome, TargetResult, TrialRecord
from batchpolicy_tuning.tune.result import StudyResult
from batchpolicy_tuning.tune.summary import trial_text


class Look(NamedTuple):
    """The mark of an outcome."""

    colour: str
    symbol: str
    """As plotly calls it."""
    sign: str
    """The like of it in a text."""


LOOKS: Mapping[Outcome, Look] = {
    Outcome.FEASIBLE: Look("--better", "circle", "\u25cf"),
    Outcome.INFEASIBLE: Look("--worse", "square-open", "\u25a1"),
    Outcome.PRUNED: Look("--muted", "diamond-open", "\u25c7"),
    Outcome.TIMED_OUT: Look("--arm-2", "triangle-down", "\u25bc"),
    Outcome.FAILED: Look("--ink", "x", "\u2715"),
}


def bound_by(one: TrialRecord) -> TargetResult | None:
    """The target that a trial missed by the most; None where it met all, or none was measured."""
    missed = [target for target in one.targets if not target.met]
    return max(missed, key=lambda target: target.miss, default=None)


def facts(result: StudyResult, one: TrialRecord) -> str:
    """A trial for the pointer, as plotly takes it."""
    lines = [f"trial {one.number}: {one.outcome.value}", trial_text(result, one.number)]
    lines += [
        f"{o.key}: {shown(o.key, one.values[o.key])}"
        for o in result.objectives
        if o.key in one.values
    ]
    bound = bound_by(one)
    if bound is not None:
        lines.append(f"bound by {missed_by(bound)}")
    elif one.reason:
        lines.append(one.reason)
    if one.outcome is Outcome.PRUNED:
        lines.append(f"after {len(one.parts)} of {one.planned} slices")
    return "<br>".join(marks.text(line) for line in lines)


def points(
    result: StudyResult, placed: Sequence[tuple[TrialRecord, Any, Any]], **more: Any
) -> Iterator[dict[str, Any]]:
    """A trace for each outcome; ``placed`` has trials with their x and y."""
    for outcome, look in LOOKS.items():
        those = [(one, x, y) for one, x, y in placed if one.outcome is outcome]
        if those:
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": outcome.value,
                "x": [x for _, x, _ in those],
                "y": [y for _, _, y in those],
                "hovertext": [facts(result, one) for one, _, _ in those],
                "hoverinfo": "text",
                "marker": {
                    "color": look.colour, "symbol": look.symbol, "size": 9, "line": {"width": 1.5},
                },
                **more,
            }  # fmt: skip


def scale(key: str) -> dict[str, Any]:
    """What an axis of an objective or a target says of its unit."""
    name = key.split("@")[0].split(".")[0]
    measure = METRICS[name].measure if name in METRICS else None
    title: dict[str, Any] = {"title": {"text": marks.text(key)}}
    match measure:
        case Measure.SECONDS:
            return {**title, "ticksuffix": " s"}
        case Measure.SHARE:
            return {**title, "tickformat": ".0%"}
        case Measure.RATE:
            unit = "tok/s" if name == "throughput" else "req/s"
            return {"title": {"text": marks.text(f"{key}, {unit}")}}
        case _:
            return title
