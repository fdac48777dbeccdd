"""The queue over time, and whether an engine kept up with its load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from batchpolicy.engine import Run

QUARTERS = 4
DRAIN_SHARE = 0.05
BUSY_SHARE = 0.5


class LoadState(StrEnum):
    """How an engine stood up to its load."""

    STABLE = "stable"
    BACKLOGGED = "backlogged"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True)
class QueueCourse:
    """Requests that waited for their first step, over the time in which requests arrived."""

    waiting: tuple[float, ...]
    """Mean number in each quarter of that time."""
    busy_share: float
    """Part of that time in which anybody waited."""
    unbroken_share: float
    """Part of the runs in which somebody waited at every moment of its second half."""
    drain_share: float
    """Time from the last arrival until the last request started, in parts of that time."""

    @classmethod
    def of(cls, run: Run) -> QueueCourse:
        """The course of a run; all 0 when its requests arrive at one instant."""
        start_s, span_s = run.workload.requests[0].arrival_s, run.workload.span_s
        if span_s <= 0.0:
            return cls((0.0,) * QUARTERS, 0.0, 0.0, 0.0)
        from_s = np.array([r.arrival_s for r in run.workload.requests]) - start_s
        ended_s = np.where(np.isfinite(run.finished_s), run.finished_s, run.end_s)
        scheduled = np.isfinite(run.first_scheduled_s)
        until_s = np.where(scheduled, run.first_scheduled_s, ended_s) - start_s
        edges_s = np.linspace(0.0, span_s, QUARTERS + 1)
        waited_s = (
            np.clip(until_s[:, None], edges_s[:-1], edges_s[1:])
            - np.clip(from_s[:, None], edges_s[:-1], edges_s[1:])
        ).sum(axis=0)
        # Arrivals are in order: nobody waits from when all before have started to the next.
        free_s = np.minimum(np.maximum.accumulate(until_s), span_s)[:-1]
        idle_s = np.maximum(from_s[1:] - free_s, 0.0)
        return cls(
            waiting=tuple((waited_s / (span_s / QUARTERS)).tolist()),
            busy_share=1.0 - float(idle_s.sum() / span_s),
            unbroken_share=float(not (idle_s[from_s[1:] > span_s / 2.0] > 0.0).any()),
            drain_share=float(max(until_s.max() - span_s, 0.0) / span_s),
        )

    @classmethod
    def mean(cls, courses: Sequence[QueueCourse]) -> QueueCourse:
        """The mean over replications."""

        def mean(name: str) -> float:
            return float(np.mean([getattr(course, name) for course in courses]))

        return cls(
            tuple(np.mean([course.waiting for course in courses], axis=0).tolist()),
            mean("busy_share"),
            mean("unbroken_share"),
            mean("drain_share"),
        )

    @property
    def state(self) -> LoadState:
        """Whether the engine kept up, judged by the mean over replications.

        *Overloaded*: in at least half of the replications somebody waits without a
        break in the second half of the arrivals, so that the queue never empties, and
        its drain takes over 5% of their time. *Backlogged*: not so, but somebody waits
        for over half of the time, or the drain takes over 5%. Else *stable*. The
        length of the queue has no say: bursts make it long for a while under any load.
        """
        long_drain = self.drain_share > DRAIN_SHARE
        if self.unbroken_share >= BUSY_SHARE and long_drain:
            return LoadState.OVERLOADED
        return (
            LoadState.BACKLOGGED
            if self.busy_share > BUSY_SHARE or long_drain
            else LoadState.STABLE
        )
