"""Distributions, and queue and memory over time, as plotly's JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from batchpolicy.quantities import format_seconds
from batchpolicy_tuning.page import marks
from batchpolicy_tuning.page.courses import courses

_MARKED = (0.5, 0.9, 0.99)
"""Where the lines of a distribution carry their symbols."""
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}


def distributions(
    document: Mapping[str, Any], at: Mapping[str, Any]
) -> list[list[marks.Plot | None]]:
    """A row for each class: how TTFT, TPOT and E2E are distributed under each policy.

    None where no request has a value.
    """
    return [
        [_distribution(document, at, s, metric) for metric in _NAMES]
        for s in range(len(at["policies"][0]["scopes"]))
    ]


def _distribution(
    document: Mapping[str, Any], at: Mapping[str, Any], s: int, metric: str
) -> marks.Plot | None:
    grid = document["distribution_grid"]
    scope = at["policies"][0]["scopes"][s]
    data: list[dict[str, Any]] = []
    notes: list[str] = []
    for i, policy in enumerate(at["policies"]):
        found = policy["scopes"][s]["distributions"][metric]
        if found["endless"]:
            notes.append(
                f"{found['endless']:,} of {found['requests']:,} never came under {policy['label']}"
            )
        ended = [
            (marks.short(value), part)
            for value, part in zip(found["quantiles"], grid, strict=False)
            if isinstance(value, float | int)
        ]
        data += _curve(i, policy["label"], ended)
    values = [x for trace in data for x in trace["x"]]
    if not values:
        return None
    data += _target(document, scope["class"], metric, values)
    values = [x for trace in data for x in trace["x"]]
    logarithmic = min(values) > 0.0
    return {
        "title": f"{scope['name']}: {_NAMES[metric]}",
        "note": "; ".join(notes),
        "height": 250,
        "data": data,
        "layout": {
            "margin": {"l": 46, "r": 12, "t": 8, "b": 34},
            "hovermode": "y unified",
            "xaxis": (
                {"type": "log", "range": _decades(values)}
                if logarithmic
                else {"rangemode": "tozero", "ticksuffix": " s"}
            ),
            "yaxis": {
                "range": [0, 1.04],
                "tickvals": [0, 0.25, 0.5, 0.75, 0.9, 1],
                "ticktext": ["0%", "25%", "50%", "75%", "90%", "100%"],
                "hoverformat": ".1%",
            },
        },
    }


def _curve(i: int, label: str, ended: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    look = marks.arm(i)
    marked = [(x, y) for x, y in ended if y in _MARKED]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": marks.text(label),
            "x": [x for x, _ in ended],
            "y": [y for _, y in ended],
            "text": [format_seconds(x) for x, _ in ended],
            "hovertemplate": "%{text}",
            "line": {"color": look.colour, "dash": look.dash, "width": 2},
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": [x for x, _ in marked],
            "y": [y for _, y in marked],
            "hoverinfo": "skip",
            "marker": {"color": look.colour, "symbol": look.symbol, "size": 8},
        },
    ]


def _target(
    document: Mapping[str, Any], name: str | None, metric: str, values: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """An upright line where the class has a target."""
    classes = document["workload"]["classes"]
    if name is None and len(classes) == 1:
        name = next(iter(classes))
    target_s = document["workload"]["targets"].get(name, {}).get(f"{metric}_s")
    if isinstance(target_s, float | int):
        # Where the room is.
        side = "right" if target_s**2 < min(values) * max(*values, target_s) else "left"
        yield {
            "type": "scatter",
            "mode": "lines+text",
            "x": [target_s] * 3,
            "y": [0, 0.12, 1],
            "text": ["", f" target {format_seconds(target_s)} ", ""],
            "textposition": f"middle {side}",
            "textfont": {"color": "--muted", "size": 11},
            "line": {"color": "--muted", "dash": "1px,3px", "width": 1.5},
            "hoverinfo": "skip",
        }


def series(document: Mapping[str, Any], at: Mapping[str, Any]) -> marks.Plot:
    """Queue and KV use of the recorded replication under each policy."""
    data: list[dict[str, Any]] = []
    for i, policy in enumerate(at["recorded"]["policies"]):
        look, told = marks.arm(i), policy["series"]
        at_s = [*told["at_s"], told["end_s"]]
        for key, axis in (("waiting", "y"), ("kv_used_frac", "y2")):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": marks.text(policy["label"]),
                    "x": at_s,
                    "y": [*told[key], told[key][-1]],
                    "xaxis": "x",
                    "yaxis": axis,
                    "hovertemplate": "%{y} waiting" if axis == "y" else "%{y:.1%} of KV",
                    "line": {
                        "color": look.colour, "dash": look.dash, "width": 1.8, "shape": "hv",
                    },
                }
            )  # fmt: skip
    shown = list(chain.from_iterable(courses(at, p) for p in at["recorded"]["policies"]))
    first_s = min((c.arrival_s for c in shown), default=0.0)
    last_s = max((c.end_s for c in shown), default=0.0)
    return {
        "title": "Requests waiting, and KV cache in use",
        "note": "",
        "height": 420,
        "data": data,
        "layout": {
            "margin": {"l": 54, "r": 12, "t": 8, "b": 42},
            "hovermode": "x unified",
            "xaxis": {"anchor": "y2", "title": {"text": "seconds"}},
            "yaxis": {"domain": [0.54, 1], "rangemode": "tozero", "title": {"text": "waiting"}},
            "yaxis2": {
                "domain": [0, 0.46],
                "range": [0, 1.03],
                "tickformat": ".0%",
                "title": {"text": "KV in use"},
            },
            "shapes": [
                {
                    "type": "rect",
                    "xref": "x",
                    "yref": "paper",
                    "x0": first_s,
                    "x1": last_s,
                    "y0": 0,
                    "y1": 1,
                    "line": {"width": 0},
                    "fillcolor": "--shade",
                    "layer": "below",
                }
            ],
        },
    }


def _decades(values: Sequence[float]) -> list[float]:
    """The range of a logarithmic axis: powers of ten, with some room at either end."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.04 * (high - low), 0.02)
    return [round(low - room, 4), round(high + room, 4)]
