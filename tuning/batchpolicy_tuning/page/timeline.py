"""Single requests as bars over time, as plotly's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchpolicy_tuning.page import marks
from batchpolicy_tuning.page.courses import Course, courses

_ROW_PX = 9
_HEAD_PX = 34
_THICKNESS = {"waiting": 0.22, "prefill": 0.9, "decode": 0.9, "preempted": 0.5}
"""Of the bars, in rows: states are told apart by it, too."""


def timeline(document: Mapping[str, Any], at: Mapping[str, Any]) -> marks.Plot:
    """The requests of the window one by one, under one policy above the other."""
    classes = list(document["workload"]["classes"])
    policies = at["recorded"]["policies"]
    told = at["recorded"]["requests"]
    order = sorted(range(len(told)), key=lambda row: classes.index(told[row]["class"]))
    place = _places(order, told)
    rows = max(place.values(), default=0) + 1
    part_px = rows * _ROW_PX + _HEAD_PX
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "margin": {"l": 86, "r": 12, "t": 4, "b": 46},
        "barmode": "overlay",
        "bargap": 0,
        "hovermode": "closest",
        "xaxis": {"anchor": f"y{len(policies)}", "title": {"text": "seconds"}},
        "annotations": [],
    }
    groups = _groups(order, told, place)
    for i, policy in enumerate(policies):
        name = f"y{i + 1}" if i else "y"
        top, bottom = 1.0 - i / len(policies), 1.0 - (i + 1) / len(policies)
        top -= _HEAD_PX / part_px / len(policies)
        layout[name.replace("y", "yaxis")] = {
            "domain": [bottom, top],
            "range": [rows - 0.3, -0.7],
            "tickvals": list(groups.values()),
            "ticktext": [marks.text(group or "without class") for group in groups],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        }
        layout["annotations"].append(_head(policy["label"], top))
        shown = courses(at, policy)
        for k, of in enumerate(classes):
            of_class = [course for course in shown if course.request_class == of]
            data += _bars(of_class, place, marks.class_colour(k), name)
        data += _missed(shown, place, name)
    return {
        "title": "Single requests",
        "note": "",
        "height": part_px * len(policies) + 50,
        "data": data,
        "layout": layout,
    }


def _head(label: str, bottom: float) -> dict[str, Any]:
    """The name of a policy over its requests."""
    return {
        "text": marks.text(label),
        "font": {"size": 14, "weight": 600},
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": bottom,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _places(order: Sequence[int], told: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Where on the axis each request is, with a gap between classes."""
    place: dict[int, int] = {}
    gaps = 0
    for at, row in enumerate(order):
        if at and told[row]["class"] != told[order[at - 1]]["class"]:
            gaps += 1
        place[row] = at + gaps
    return place


def _groups(
    order: Sequence[int], told: Sequence[Mapping[str, Any]], place: Mapping[int, int]
) -> dict[str, float]:
    """The middle of each class on the axis."""
    places: dict[str, list[int]] = {}
    for row in order:
        places.setdefault(told[row]["class"], []).append(place[row])
    return {name: sum(found) / len(found) for name, found in places.items()}


def _bars(
    of_class: Sequence[Course], place: Mapping[int, int], colour: str, axis: str
) -> Iterator[dict[str, Any]]:
    """A trace for each state."""
    for state, thickness in _THICKNESS.items():
        bars = [
            (place[course.row], start_s, end_s, course.facts)
            for course in of_class
            for name, start_s, end_s in course.stays
            if name == state and end_s > start_s
        ]
        if not bars:
            continue
        marker: dict[str, Any] = {"color": colour, "line": {"width": 0}}
        if state == "decode":
            marker["color"] = f"{colour}/0.45"
        elif state == "preempted":
            marker["color"] = "--panel"
            marker["line"] = {"width": 1, "color": colour}
            marker["pattern"] = {
                "shape": "x", "fgcolor": colour, "bgcolor": "--panel", "size": 4, "solidity": 0.3,
            }  # fmt: skip
        yield {
            "type": "bar",
            "orientation": "h",
            "y": [y for y, *_ in bars],
            "base": [marks.short(start_s) for _, start_s, _, _ in bars],
            "x": [marks.short(end_s - start_s) for _, start_s, end_s, _ in bars],
            "width": thickness,
            "xaxis": "x",
            "yaxis": axis,
            "marker": marker,
            "hovertext": [facts for *_, facts in bars],
            "hoverinfo": "text",
            "textposition": "none",
        }


def _missed(
    shown: Sequence[Course], place: Mapping[int, int], axis: str
) -> Iterator[dict[str, Any]]:
    missed = [course for course in shown if course.missed_at_s is not None]
    if missed:
        yield {
            "type": "scatter",
            "mode": "markers",
            "x": [course.missed_at_s for course in missed],
            "y": [place[course.row] for course in missed],
            "xaxis": "x",
            "yaxis": axis,
            "marker": {
                "symbol": "x-thin", "size": 6, "line": {"width": 1.6, "color": "--worse"},
            },
            "hovertext": [course.facts for course in missed],
            "hoverinfo": "text",
        }  # fmt: skip
