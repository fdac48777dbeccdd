"""Results as words, independent of where they are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batchpolicy.quantities import format_seconds
from batchpolicy_tuning.ab import AtLoad, Results
from batchpolicy_tuning.metrics import Metric
from batchpolicy_tuning.statistics import Comparison, Verdict

ALL = "all requests"


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one class that a policy changed."""

    scope: str
    metric: Metric
    comparison: Comparison

    def __str__(self) -> str:
        c = self.comparison
        values = f"{in_unit(c.baseline, self.metric)} to {in_unit(c.policy, self.metric)}"
        return f"{self.metric.label} {in_words(c, self.metric)} ({values})"


def changes(results: Results, at: AtLoad, arm: int) -> list[Change]:
    """What the arm made better or worse than the baseline, class by class.

    Times are told by class alone where there are classes: over all requests they
    mix what one class gained with what another lost.
    """
    found: list[Change] = []
    scopes = results.scopes()
    for scope in scopes:
        for metric in results.metrics(scope):
            if scope is None and len(scopes) > 1 and metric.unit == "seconds":
                continue
            comparison = at.against_baseline(arm, scope, metric)
            if comparison.verdict in (Verdict.BETTER, Verdict.WORSE):
                found.append(Change(scope_name(scope), metric, comparison))
    return found


def scope_name(scope: str | None) -> str:
    """A class, or all requests."""
    return ALL if scope is None else scope or "without class"


def in_unit(value: float, metric: Metric) -> str:
    """A value of the metric for people."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "no end"
    match metric.unit:
        case "seconds":
            # Rounded before it chooses its unit: 0.9999996 ms is 1 ms.
            return format_seconds(value) if value else "0 s"
        case "share":
            return f"{100.0 * value:.1f}%"
        case "index":
            return f"{value:.3f}"
        case "count" | "tokens" | "tokens/s":
            if abs(value) >= 100_000:
                return f"{value / 1000:,.0f}k"
            return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def relative(comparison: Comparison, metric: Metric) -> bool:
    """Whether an improvement is told in percent of the baseline; else in the metric's unit."""
    return not metric.in_points and not math.isnan(comparison.relative_low)


def in_words(comparison: Comparison, metric: Metric) -> str:
    """How the policy differs from the baseline: ``38% lower``, ``4.1 times``."""
    c = comparison
    if math.isnan(c.improvement):
        return c.reason
    higher = (c.improvement > 0.0) == metric.higher_is_better
    if higher and relative(c, metric) and c.policy >= 2.0 * c.scale:
        return f"{c.policy / c.baseline:.1f} times"
    size = amount(abs(c.improvement), c, metric)
    if metric.unit == "share":
        size += " points"
    return f"{size} {'higher' if higher else 'lower'}"


def amount(gain: float, comparison: Comparison, metric: Metric) -> str:
    """A gain in percent of the baseline, in points of a share, or in the metric's unit."""
    if relative(comparison, metric):
        return f"{_rounded(100.0 * gain / comparison.scale)}%"
    if metric.unit == "share":
        return f"{100.0 * gain + 0.0:.1f}"
    return in_unit(gain, metric)


def interval(comparison: Comparison, metric: Metric) -> str:
    """The interval of an improvement, in the terms of ``amount``."""
    c = comparison
    ends = [c.low, c.high]
    if relative(c, metric):
        ends = [c.relative_low * c.scale, c.relative_high * c.scale]
    low, high = (amount(end, c, metric).removesuffix("%") for end in ends)
    return f"[{low}, {high}]"


def _rounded(percent: float) -> str:
    text = f"{percent:.0f}" if abs(percent) >= 9.95 else f"{percent:.1f}"
    return "0.0" if text == "-0.0" else text
