"""What targets, gates and objectives can be about: metrics, their units and statistics."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Measure(Enum):
    """What the bound of a metric counts."""

    SECONDS = "seconds"
    RATE = "per second"
    SHARE = "share"
    COUNT = "count"


class Metric(NamedTuple):
    """What can be asked of a metric; those in seconds have one value per request."""

    help: str
    measure: Measure
    low_is_good: bool
    units: tuple[str, ...] = ()
    """What may follow the number without changing it."""
    compares_tenants: bool = False


METRICS: dict[str, Metric] = {
    "ttft": Metric("time to first token", Measure.SECONDS, True),
    "tpot": Metric("(end to end - ttft) / (tokens - 1)", Measure.SECONDS, True),
    "itl": Metric("gaps between tokens", Measure.SECONDS, True),
    "e2el": Metric("end to end", Measure.SECONDS, True),
    "queue": Metric("arrival to first scheduling", Measure.SECONDS, True),
    "throughput": Metric("output tokens per second", Measure.RATE, False, ("tokens/s", "tok/s")),
    "goodput": Metric(
        "requests per second that met their targets", Measure.RATE, False, ("requests/s", "req/s")
    ),
    "attainment": Metric("share of requests that met their targets", Measure.SHARE, False),
    "jain": Metric("Jain's index over tenants", Measure.SHARE, False, (), True),
    "service_gap": Metric(
        "largest gap in weighted service between tenants",
        Measure.COUNT,
        True,
        ("tokens",),
        True,
    ),
    "preemptions": Metric("preemptions in the run", Measure.COUNT, True),
    "recompute": Metric("tokens computed again in the run", Measure.COUNT, True, ("tokens",)),
    "cost": Metric("price of a million output tokens", Measure.COUNT, True),
}
STATISTICS = ("mean", "min", "max", "p1", "p50", "p90", "p95", "p99", "p99.9")
"""Examples; any percentile from p1 to p99.9 with at most one decimal is one."""
