"""Objectives against each other, and parameters against objectives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from batchpolicy_tuning.page import marks
from batchpolicy_tuning.tune.page.arms import Arm
from batchpolicy_tuning.tune.page.looks import points, scale
from batchpolicy_tuning.tune.records import TrialRecord
from batchpolicy_tuning.tune.result import ParameterResult, StudyResult


def fronts(result: StudyResult, arms: list[Arm]) -> list[marks.Plot]:
    """Each pair of objectives, with the front of feasible trials; none for one objective."""
    return [_front(result, arms, a.key, b.key) for a, b in combinations(result.objectives, 2)]


def _front(result: StudyResult, arms: list[Arm], x: str, y: str) -> marks.Plot:
    placed = [
        (one, marks.short(one.values[x]), marks.short(one.values[y]))
        for one in result.trials
        if all(key in one.values and math.isfinite(one.values[key]) for key in (x, y))
    ]
    by_number = {one.number: (at_x, at_y) for one, at_x, at_y in placed}
    front = sorted(by_number[number] for number in result.pareto if number in by_number)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "front",
            "x": [at[0] for at in front],
            "y": [at[1] for at in front],
            "hoverinfo": "skip",
            "line": {"color": "--better", "dash": "1px,3px", "width": 1.8},
        },
        *points(result, placed),
        *_named(arms, by_number),
    ]
    return {
        "title": f"{y} against {x}",
        "note": "dotted: the feasible trials that no other one beats in all objectives",
        "height": 380,
        "data": data,
        "layout": {
            "margin": {"l": 62, "r": 12, "t": 8, "b": 46},
            "hovermode": "closest",
            "xaxis": scale(x),
            "yaxis": scale(y),
        },
    }


def _named(arms: list[Arm], places: dict[int, tuple[float, float]]) -> Iterator[dict[str, Any]]:
    for arm in arms:
        if arm.trial is not None and arm.trial.number in places:
            at_x, at_y = places[arm.trial.number]
            yield {
                "type": "scatter",
                "mode": "text",
                "x": [at_x],
                "y": [at_y],
                "text": [marks.text(arm.label)],
                "textposition": "top center",
                "textfont": {"color": marks.arm(arm.i).colour, "size": 11},
                "cliponaxis": False,
                "hoverinfo": "skip",
            }


def by_parameter(result: StudyResult) -> list[marks.Plot]:
    """Each parameter of the space against the first objective."""
    key = result.objectives[0].key
    found: list[marks.Plot] = []
    for one in result.parameters:
        placed = [
            (trial, _at(one, trial), marks.short(trial.values[key]))
            for trial in result.trials
            if key in trial.values
            and math.isfinite(trial.values[key])
            and one.name in trial.parameters
        ]
        if placed:
            found.append(_parameter(result, one, placed))
    return found


def _at(one: ParameterResult, trial: TrialRecord) -> float | str:
    value = trial.parameters[one.name]
    if not one.choices and isinstance(value, float | int):
        return marks.short(value)
    return marks.text(str(value))


def _parameter(
    result: StudyResult, one: ParameterResult, placed: list[tuple[TrialRecord, Any, Any]]
) -> marks.Plot:
    key = result.objectives[0].key
    if one.choices:
        choices = [marks.text(str(choice)) for choice in one.choices]
        given = {x for _, x, _ in placed} - set(choices)
        axis: dict[str, Any] = {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [*choices, *sorted(given)],
        }
    elif one.log:
        # Its own ticks: only times have those of the page.
        axis = {"type": "log", "tickformat": "~g", "dtick": 1}
    else:
        axis = {}
    return {
        "title": one.name,
        "note": f"among trials of {one.of}" if one.of else "",
        "height": 230,
        "data": list(points(result, placed)),
        "layout": {
            "margin": {"l": 56, "r": 12, "t": 8, "b": 34},
            "hovermode": "closest",
            "xaxis": axis,
            "yaxis": scale(key),
        },
    }
