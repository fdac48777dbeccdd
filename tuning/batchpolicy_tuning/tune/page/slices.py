"""What each slice or seed gave, under the finalists and the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from batchpolicy_tuning.page import marks
from batchpolicy_tuning.tune.judging import shown
from batchpolicy_tuning.tune.page.arms import Arm
from batchpolicy_tuning.tune.page.looks import scale
from batchpolicy_tuning.tune.result import StudyResult


def slices(result: StudyResult, arms: list[Arm]) -> list[marks.Plot]:
    """Each objective by slice, in the search and held out; only what was run."""
    found: list[marks.Plot] = []
    for objective in result.objectives:
        for held_out in (False, True):
            data = [
                trace for arm in arms for trace in _values(arm, objective.key, held_out=held_out)
            ]
            if data:
                found.append(_plot(result, objective.key, data, held_out=held_out))
    return found


def _values(arm: Arm, key: str, *, held_out: bool) -> Iterator[dict[str, Any]]:
    look = marks.arm(arm.i)
    told = [
        (part.instance, part.values[key])
        for part in arm.parts(held_out=held_out)
        if key in part.values and math.isfinite(part.values[key])
    ]
    if told:
        yield {
            "type": "scatter",
            "mode": "lines+markers",
            "name": marks.text(arm.label),
            "x": [marks.text(name) for name, _ in told],
            "y": [marks.short(value) for _, value in told],
            "hovertext": [
                marks.text(f"{arm.label}, {name}: {shown(key, value)}") for name, value in told
            ],
            "hoverinfo": "text",
            "line": {"color": look.colour, "dash": look.dash, "width": 1.2},
            "marker": {"color": look.colour, "symbol": look.symbol, "size": 8},
        }


def _plot(
    result: StudyResult, key: str, data: list[dict[str, Any]], *, held_out: bool
) -> marks.Plot:
    names = result.held_out_instances if held_out else result.search_instances
    engine = result.final_engine if held_out else result.search_engine
    # What all names begin with says nothing.
    workloads = {name.rpartition(", ")[0] for name in names}
    short = [name.rpartition(", ")[2] if len(workloads) == 1 else name for name in names]
    return {
        "title": f"{key}, {'held out' if held_out else 'in the search'}",
        "note": f"on {engine}",
        "height": 300,
        "data": data,
        "layout": {
            "margin": {"l": 62, "r": 12, "t": 8, "b": 40},
            "hovermode": "closest",
            "xaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [marks.text(name) for name in names],
                "tickvals": [marks.text(name) for name in names],
                "ticktext": [marks.text(name) for name in short],
                "tickangle": -30 if len(names) > 6 else 0,
            },
            "yaxis": {**scale(key), "rangemode": "tozero"},
        },
    }
