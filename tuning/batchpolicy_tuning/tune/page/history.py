"""Trials in the order in which they were begun, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from batchpolicy_tuning.page import marks
from batchpolicy_tuning.tune.judging import MOST_MISS, Goal, shown
from batchpolicy_tuning.tune.page.looks import points, scale
from batchpolicy_tuning.tune.records import Outcome, TrialRecord
from batchpolicy_tuning.tune.result import ObjectiveResult, StudyResult

_HEIGHT_PX, _STRIP = 330, 0.1


def histories(result: StudyResult) -> list[marks.Plot]:
    """How each objective went and, where there are targets, how far the trials were from them.

    What has no value stands in a strip below.
    """
    if not result.trials:
        return []
    found = [_objective(result, one) for one in result.objectives]
    if any(one.targets for one in result.trials):
        found.append(_distance(result))
    return found


def _objective(result: StudyResult, objective: ObjectiveResult) -> marks.Plot:
    key, goal = objective.key, Goal(objective.key, objective.direction == "maximize")
    values = {
        one.number: one.values[key]
        for one in result.trials
        if key in one.values and math.isfinite(one.values[key])
    }
    best: list[tuple[int, float]] = []
    for one in result.trials:
        if one.outcome is Outcome.FEASIBLE and one.number in values:
            now = values[one.number]
            better = not best or goal.loss({key: now}) < goal.loss({key: best[-1][1]})
            best.append((one.number, now if better else best[-1][1]))
    if best:
        best.append((result.trials[-1].number, best[-1][1]))
    direction = "higher" if goal.high_is_good else "lower"
    data = [
        *_line("best so far", best, "--better", key, dash="solid"),
        *_baseline(result, values, key),
        *points(result, _placed(result, values)),
    ]
    return _plot(result, f"{key} by trial", f"{direction} is better", data, values, scale(key))


def _distance(result: StudyResult) -> marks.Plot:
    # A bound that is missed a hundredfold would leave no room for the others.
    values = {
        one.number: 100.0 * one.worst_miss
        for one in result.trials
        if one.targets and one.worst_miss < MOST_MISS
    }
    full = (Outcome.FEASIBLE, Outcome.INFEASIBLE)
    best: list[tuple[int, float]] = []
    for one in result.trials:
        if one.outcome in full and one.number in values:
            now = values[one.number]
            best.append((one.number, min(now, best[-1][1]) if best else now))
    if best:
        best.append((result.trials[-1].number, best[-1][1]))
    data = [
        *_line("closest so far", best, "--muted", "", dash="solid"),
        {
            "type": "scatter",
            "mode": "lines",
            "name": "bound",
            "x": _ends(result),
            "y": [0.0, 0.0],
            "hoverinfo": "skip",
            "line": {"color": "--ink", "dash": "1px,3px", "width": 1.5},
        },
        *points(result, _placed(result, values)),
    ]
    axis = {"title": {"text": "farthest target"}, "ticksuffix": "%"}
    note = (
        "parts of its bound beyond the target that is farthest from being met; below 0 all are met"
    )
    return _plot(result, "Distance to the targets by trial", note, data, values, axis)


def _placed(result: StudyResult, values: dict[int, float]) -> list[tuple[TrialRecord, Any, Any]]:
    return [
        (one, one.number, marks.short(values[one.number]))
        for one in result.trials
        if one.number in values
    ]


def _line(
    name: str, steps: Sequence[tuple[int, float]], colour: str, key: str, *, dash: str
) -> Iterator[dict[str, Any]]:
    if steps:
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": [x for x, _ in steps],
            "y": [marks.short(y) for _, y in steps],
            "hovertext": [
                marks.text(f"{name}: {shown(key, y) if key else f'{y:+.3g}%'}") for _, y in steps
            ],
            "hoverinfo": "text",
            "line": {"color": colour, "dash": dash, "width": 1.8, "shape": "hv"},
        }


def _baseline(result: StudyResult, values: dict[int, float], key: str) -> Iterator[dict[str, Any]]:
    first = next((one for one in result.trials if one.origin == "baseline"), None)
    if first is not None and first.number in values:
        value = values[first.number]
        left, right = _ends(result)
        steps = [(left, value), (right, value)]
        yield from _line("baseline", steps, marks.arm(0).colour, key, dash=marks.arm(0).dash)


def _ends(result: StudyResult) -> tuple[int, int]:
    return result.trials[0].number, result.trials[-1].number


def _plot(
    result: StudyResult,
    title: str,
    note: str,
    data: list[dict[str, Any]],
    values: dict[int, float],
    axis: dict[str, Any],
) -> marks.Plot:
    left = [(one, one.number, "no value") for one in result.trials if one.number not in values]
    x: dict[str, Any] = {"title": {"text": "trial"}, "anchor": "y"}
    layout: dict[str, Any] = {
        "margin": {"l": 62, "r": 12, "t": 8, "b": 42},
        "hovermode": "closest",
        "xaxis": x,
        "yaxis": axis,
    }
    if left:
        data = [*data, *points(result, left, yaxis="y2")]
        x["anchor"] = "y2"
        layout["yaxis"] = {**axis, "domain": [_STRIP + 0.04, 1]}
        layout["yaxis2"] = {"domain": [0, _STRIP], "type": "category", "fixedrange": True}
    return {"title": title, "note": note, "height": _HEIGHT_PX, "data": data, "layout": layout}
