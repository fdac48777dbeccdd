"""Gains with their intervals, drawn into the tables, and the matrix of verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

REACHES = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
"""Ends of the axis to choose from, in percent; what lies beyond gets an arrow."""


class Mark(NamedTuple):
    """A gain on the axis; places are in percent of its width."""

    place: float
    low: float
    high: float
    beyond_low: bool
    beyond_high: bool


class Line(NamedTuple):
    """One policy in one metric."""

    arm: int
    label: str
    text: str
    """The policy's value."""
    gain: str
    mood: str
    verdict: str
    mark: Mark | None


class Group(NamedTuple):
    """One metric: the baseline's value, and a line for each other policy."""

    label: str
    baseline: str
    lines: list[Line]


class Forest(NamedTuple):
    """All metrics of one class, on one axis."""

    heading: str
    ticks: list[tuple[float, str]]
    groups: list[Group]


class Cell(NamedTuple):
    """A verdict in the matrix; all empty where the metric is not shown."""

    mood: str
    text: str
    hint: str


class Verdicts(NamedTuple):
    """A row of the matrix."""

    arm: int
    label: str
    scope: str
    cells: list[Cell]


class Matrix(NamedTuple):
    """Which policy changed what for whom, at one load."""

    metrics: list[str]
    rows: list[Verdicts]


class Side(NamedTuple):
    """The gains of a policy, or what it costs."""

    kind: str
    verdict: str
    title: str
    nothing: str
    changes: dict[str, list[str]]
    """Sentences by class."""


def forests(at: Mapping[str, Any]) -> list[Forest]:
    """A forest for each class and one for all requests, on axes of one reach."""
    baseline, *others = at["policies"]
    reach = reach_of(
        end
        for policy in others
        for scope in policy["scopes"]
        for metric in scope["metrics"].values()
        if metric["shown"]
        for end in _ends(metric)
    )
    return [
        Forest(
            scope["heading"],
            ticks(reach),
            [
                Group(
                    metric["label"],
                    metric["text"],
                    [
                        _line(i, policy, policy["scopes"][s]["metrics"][key], reach)
                        for i, policy in enumerate(others, start=1)
                    ],
                )
                for key, metric in scope["metrics"].items()
                if metric["shown"]
            ],
        )
        for s, scope in enumerate(baseline["scopes"])
    ]


def matrix(at: Mapping[str, Any]) -> Matrix:
    """Verdicts by policy and class, in rows, and by metric, in columns."""
    labels: dict[str, str] = {}
    for scope in at["policies"][0]["scopes"]:
        labels |= {k: m["label"] for k, m in scope["metrics"].items() if m["shown"]}
    order = list(at["policies"][0]["scopes"][-1]["metrics"])
    keys = sorted(labels, key=order.index)
    return Matrix(
        [labels[key] for key in keys],
        [
            Verdicts(
                i,
                policy["label"],
                scope["name"],
                [_cell(scope["metrics"].get(key)) for key in keys],
            )
            for i, policy in enumerate(at["policies"][1:], start=1)
            for scope in policy["scopes"]
        ],
    )


def sides(policy: Mapping[str, Any]) -> list[Side]:
    """What a policy made better and what it made worse, each in the order of the classes."""
    found: dict[str, dict[str, list[str]]] = {"better": {}, "worse": {}}
    for change in policy["changes"]:
        found[change["verdict"]].setdefault(change["scope"], []).append(change["text"])
    return [
        Side("gains", "better", "Gains", "No gain shown.", found["better"]),
        Side("pays", "worse", "Pays", "No loss shown.", found["worse"]),
    ]


def ticks(reach: float) -> list[tuple[float, str]]:
    """Places and texts along an axis."""
    return [
        (25.0 * k, f"{(k - 2) * reach / 2:+.3g}%".replace("+0%", "0").replace("-", "\u2212"))
        for k in range(5)
    ]


def mark(ends: Sequence[float], reach: float) -> Mark | None:
    """A gain and both ends of its interval, in percent, on the axis; None for none."""
    if not ends:
        return None
    at, low, high = ((50.0 + 50.0 * end / reach) for end in ends)
    return Mark(_clipped(at), _clipped(low), _clipped(high), low < 0.0, high > 100.0)


def _line(arm: int, policy: Mapping[str, Any], metric: Mapping[str, Any], reach: float) -> Line:
    against = metric["against_baseline"]
    return Line(
        arm,
        policy["label"],
        metric["text"],
        against["text"],
        against["mood"],
        against["verdict"],
        mark(_ends(metric), reach),
    )


def _ends(metric: Mapping[str, Any]) -> list[float]:
    """Gain and both ends of its interval, in percent or points; none without interval."""
    against = metric["against_baseline"]
    relative = metric["unit"] not in ("share", "index")
    gain = against["relative_improvement" if relative else "improvement"]
    ends = [gain, *against["relative_interval" if relative else "interval"]]
    found = [100.0 * end for end in ends if isinstance(end, float | int)]
    return found if len(found) == len(ends) else []


def _cell(metric: Mapping[str, Any] | None) -> Cell:
    if metric is None or not metric["shown"]:
        return Cell("", "", "")
    against = metric["against_baseline"]
    verdict = against["verdict"]
    short = {"better": against["text"].split(" [")[0], "equivalent": "="}
    short["worse"] = short["better"]
    mood = verdict if verdict in ("better", "worse") else "dim"
    return Cell(mood, short.get(verdict, "\u00b7"), f"{metric['label']}: {against['text']}")


def _clipped(place: float) -> float:
    return round(min(max(place, 0.0), 100.0), 2)


def reach_of(ends: Iterable[float]) -> float:
    """The least of ``REACHES`` that holds all ends, else the largest."""
    furthest = max((abs(end) for end in ends), default=0.0)
    return next((reach for reach in REACHES if furthest <= reach), REACHES[-1])
