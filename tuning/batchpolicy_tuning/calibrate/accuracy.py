"""How far the latencies of a replay are from those that were measured."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from batchpolicy.profiles import MetricErrors

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Seconds by request, in the order of the run; NaN where a metric does not exist."""

    e2el: Floats
    ttft: Floats
    tpot: Floats
    """Mean time of each token after the first; NaN with one token."""

    @classmethod
    def of(cls, ttft_s: Floats, e2el_s: Floats, tokens: npt.NDArray[np.int64]) -> Self:
        """All metrics from times since arrival and output tokens."""
        further = np.where(tokens > 1, tokens - 1, np.nan)
        return cls(e2el_s, ttft_s, (e2el_s - ttft_s) / further)

    def picked(self, rows: slice) -> Latencies:
        """Those of some requests."""
        return Latencies(self.e2el[rows], self.ttft[rows], self.tpot[rows])


METRICS = tuple(field.name for field in fields(Latencies))
NAMES = {"e2el": "E2E", "ttft": "TTFT", "tpot": "TPOT"}


def errors(real: Latencies, replayed: Latencies) -> dict[str, MetricErrors]:
    """Errors by metric, as shares of what was measured; a metric nobody has is left out."""
    found: dict[str, MetricErrors] = {}
    for name in METRICS:
        truth: Floats = getattr(real, name)
        guess: Floats = getattr(replayed, name)
        there = np.isfinite(truth) & np.isfinite(guess) & (truth > 0.0)
        if there.any():
            found[name] = _metric_errors(truth[there], guess[there])
    return found


def _metric_errors(truth: Floats, guess: Floats) -> MetricErrors:
    def share(real: np.floating, replayed: np.floating) -> float:
        return round(float(replayed / real) - 1.0, 4)

    return MetricErrors(
        mean=share(truth.mean(), guess.mean()),
        p50=share(np.percentile(truth, 50), np.percentile(guess, 50)),
        p95=share(np.percentile(truth, 95), np.percentile(guess, 95)),
        mape=round(float(np.abs(guess / truth - 1.0).mean()), 4),
    )
