"""Targets and gates; ``target_grammar`` reads them, and their ``str`` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchpolicy.metrics import METRICS, Measure
from batchpolicy.quantities import parse_seconds

ScopeKind = Literal["class", "tenant"]


@dataclass(frozen=True, slots=True)
class Measurand:
    """What a target bounds and an objective improves; ``str`` gives it back in the grammar."""

    metric: str
    statistic: str | None
    """None for metrics that are one number for a run."""
    scope_kind: ScopeKind | None = None
    """None when all requests count."""
    scope_name: str = ""

    @property
    def low_is_good(self) -> bool:
        """Which way is better."""
        return METRICS[self.metric].low_is_good

    @property
    def quantile(self) -> float | None:
        """0.99 for ``p99``, 0 and 1 for ``min`` and ``max``; None for the others."""
        if self.statistic in {"min", "max"}:
            return float(self.statistic == "max")
        if self.statistic is None or self.statistic == "mean":
            return None
        return round(float(self.statistic[1:]) / 100.0, 4)

    def __str__(self) -> str:
        head = f"{self.metric}.{self.statistic}" if self.statistic else self.metric
        return head + (f"@{self.scope_kind}={self.scope_name}" if self.scope_kind else "")


@dataclass(frozen=True, slots=True)
class Target:
    """One target; ``str`` gives it back in the grammar."""

    metric: str
    statistic: str | None
    """None for metrics that are one number for a run."""
    bound: float
    """Seconds, tokens or requests per second, a share from 0 to 1, or a count."""
    at_most: bool
    scope_kind: ScopeKind | None = None
    """None when all requests count."""
    scope_name: str = ""

    @property
    def quantile(self) -> float | None:
        """0.99 for ``p99``, 0 and 1 for ``min`` and ``max``; None for the others."""
        return self.measurand.quantile

    @property
    def measurand(self) -> Measurand:
        """What is bounded."""
        return Measurand(self.metric, self.statistic, self.scope_kind, self.scope_name)

    def met_by(self, value: float) -> bool:
        """Whether a measured value meets it; NaN, nothing measured, never does."""
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        head = f"{self.metric}.{self.statistic}" if self.statistic else self.metric
        scope = f"@{self.scope_kind}={self.scope_name}" if self.scope_kind else ""
        bound = _bound_text(self.bound, METRICS[self.metric].measure)
        return f"{head}{'<=' if self.at_most else '>='}{bound}{scope}"


@dataclass(frozen=True, slots=True)
class Gate:
    """The most that a metric may change for the worse, or the least that it must for the better.

    ``str`` gives it back in the grammar.
    """

    metric: str
    statistic: str | None
    """None for metrics that are one number for a run."""
    change: float
    """0.05 for ``+5%``: of the baseline, or for shares, which are parts of 1, in points."""
    at_most: bool
    scope_kind: ScopeKind | None = None
    """None when all requests count."""
    scope_name: str = ""

    @property
    def key(self) -> str:
        """Metric and statistic: ``ttft.p99``."""
        return f"{self.metric}.{self.statistic}" if self.statistic else self.metric

    @property
    def is_relative(self) -> bool:
        """Whether the change counts in parts of the baseline, and not in points."""
        return METRICS[self.metric].measure is not Measure.SHARE

    def __str__(self) -> str:
        scope = f"@{self.scope_kind}={self.scope_name}" if self.scope_kind else ""
        return f"{self.key}{'<=' if self.at_most else '>='}{_percent_text(self.change)}{scope}"


def _percent_text(change: float) -> str:
    """The change as the grammar writes it, short where that reads back exactly."""
    texts = (f"{change * 100.0:+.{digits}g}" for digits in range(12, 18))
    return next((t for t in texts if float(t) / 100.0 == change), f"{change * 100.0:+}") + "%"


def _bound_text(bound: float, measure: Measure) -> str:
    """The bound as the grammar writes it, short where that reads back exactly."""
    if measure is Measure.SHARE:
        percent = f"{bound * 100.0:.12g}"
        return f"{percent}%" if float(percent) / 100.0 == bound else repr(bound)
    if measure is not Measure.SECONDS:
        return f"{bound:.12g}" if float(f"{bound:.12g}") == bound else repr(bound)
    unit, unit_s = next(
        (unit, unit_s)
        for unit, unit_s in (("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
        if bound >= unit_s * (2 if unit == "min" else 1) or unit == "us"
    )
    short = f"{bound / unit_s:.12g}{unit}"
    return short if parse_seconds(short) == bound else f"{bound!r}s"
