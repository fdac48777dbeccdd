"""Importance of parameters, as bars beside what chance gives."""

from __future__ import annotations

from typing import Any

from batchpolicy_tuning.page import marks
from batchpolicy_tuning.tune.result import ImportanceResult, StudyResult


def heading(one: ImportanceResult) -> str:
    """What is told by it, and among which trials."""
    among = f"among {one.trials} trials of {one.of}" if one.of else f"among {one.trials} trials"
    return f"{one.measure}, {among}"


def bars(result: StudyResult) -> list[marks.Plot]:
    """A plot for each measure and policy of which something can be said."""
    return [_bars(one) for one in result.importance if one.parameters]


def _bars(one: ImportanceResult) -> marks.Plot:
    names = [marks.text(p.name) for p in one.parameters]
    shares = [marks.short(p.share) for p in one.parameters]
    chances = [marks.short(min(p.chance, 1.0)) for p in one.parameters]
    beyond = [p.share > p.chance for p in one.parameters]
    told = [
        f"{marks.text(p.name)}: {p.share:.0%} of what is told"
        f"<br>{'more than' if p.share > p.chance else 'no more than'} shuffled results reach "
        f"({min(p.chance, 9.99):.0%})"
        for p in one.parameters
    ]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "share",
            "y": names,
            "x": shares,
            "marker": {"color": ["--arm-1" if more else "--rule" for more in beyond]},
            "hovertext": told,
            "hoverinfo": "text",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "chance",
            "y": names,
            "x": chances,
            "marker": {
                "symbol": "line-ns", "size": 14, "line": {"width": 2, "color": "--ink"},
            },
            "hovertext": told,
            "hoverinfo": "text",
        },
    ]  # fmt: skip
    return {
        "title": heading(one),
        "note": "",
        "height": 60 + 30 * len(names),
        "data": data,
        "layout": {
            "margin": {"l": 120, "r": 16, "t": 4, "b": 34},
            "bargap": 0.35,
            "hovermode": "closest",
            "xaxis": {"range": [0, 1.03], "tickformat": ".0%"},
            "yaxis": {"type": "category", "autorange": "reversed"},
        },
    }
