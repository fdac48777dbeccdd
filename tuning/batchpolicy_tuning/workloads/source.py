"""Where the workloads of a comparison come from, one for each replication."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload
from batchpolicy_tuning.workloads.classes import Classes
from batchpolicy_tuning.workloads.ticks import spread


class WorkloadSource(Protocol):
    """Gives the workload of each replication, at its own rate of arrivals."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the results should know, one sentence each."""
        ...

    @property
    def replications(self) -> int | None:
        """How many there are; None for as many as one likes."""
        ...

    def replication(self, k: int, seed: int) -> Workload:
        """Workload number ``k``, from 0; the same for equal arguments."""
        ...


@dataclass(frozen=True, slots=True)
class TraceSlices:
    """A trace cut into disjoint slices of consecutive requests, all of one size.

    Raises
    ------
    WorkloadError
        When the trace is too short for two requests in each slice.
    """

    trace: Workload
    slices: int
    classes: Classes | None = None
    notes: Sequence[str] = field(default=())
    spread_ticks: bool = False
    """Requests of one instant arrive over the time to the next one, drawn by the seed."""

    def __post_init__(self) -> None:
        n = len(self.trace.requests)
        if n < 2 * self.slices:
            fewer = f", or --pairs {n // 2}" if n // 2 >= 2 else ""
            raise WorkloadError(
                f"{self.trace.name}: {n:,} request{'s are' if n > 1 else ' is'} too few for "
                f"{self.slices} pairs, which take at least two requests each. Use a longer "
                f"trace{fewer}."
            )

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.trace.name

    @property
    def replications(self) -> int:
        """How many slices there are."""
        return self.slices

    def replication(self, k: int, seed: int) -> Workload:
        """The k-th slice, its first arrival at 0, with classes drawn from ``seed``."""
        size = len(self.trace.requests) // self.slices
        within = slice(k * size, (k + 1) * size)
        rows = self.trace.requests[within]
        if self.spread_ticks:
            ticks_s = np.array([r.arrival_s for r in self.trace.requests])
            arrivals_s = spread(ticks_s, seed)[within].tolist()
            rows = tuple(
                replace(r, arrival_s=arrival_s)
                for r, arrival_s in zip(rows, arrivals_s, strict=True)
            )
        part = Workload(self.trace.name, rows).stretched(1.0)
        return part if self.classes is None else self.classes.laid_over(part, seed)


def arrival_rate(workloads: Iterable[Workload]) -> float:
    """Mean requests per second over all of them: gaps between arrivals, over their sum.

    Raises
    ------
    WorkloadError
        When all requests arrive at one instant, so that no load can be set.
    """
    gaps, span_s, name = 0, 0.0, ""
    for workload in workloads:
        gaps += len(workload.requests) - 1
        span_s += workload.span_s
        name = workload.name
    if span_s <= 0.0:
        raise WorkloadError(
            f"{name}: all requests arrive at one instant, so that no load can be set; "
            "give a workload whose arrivals are spread over time"
        )
    return gaps / span_s
