"""Paired comparison of two policies over replications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

from batchpolicy.requests import FloatArray

FEWEST_PAIRS = 8
"""With fewer, the interval says more about the replications than about the policies."""
CONFIDENCE = 0.95
ROUNDING = 1e-9
"""Differences up to this part of the values are none."""


class Verdict(StrEnum):
    """What a comparison has shown."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "not shown"
    NOTHING_TO_SCHEDULE = "nothing to schedule"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy against the baseline in one metric, over paired replications."""

    baseline: float
    """Mean of the baseline over the pairs."""
    policy: float
    """Mean of the policy over the same pairs."""
    improvement: float
    """Mean difference, positive where the policy is better, in the metric's unit."""
    low: float
    high: float
    """Ends of its interval; NaN without one."""
    pairs: int
    """Pairs in which both have a finite value."""
    verdict: Verdict
    reason: str = ""
    """Why nothing was shown, where it is not the interval."""

    @property
    def scale(self) -> float:
        """What 100% of improvement would be: the baseline's mean; NaN where that is 0."""
        return abs(self.baseline) or math.nan


def compare(
    baseline: Sequence[float],
    policy: Sequence[float],
    *,
    higher_is_better: bool = False,
    queued: bool = True,
) -> Comparison:
    """Compare two arms that saw the same workloads, pair by pair.

    The interval is Student's, at 95%, for the mean of the paired differences: it
    covers the true mean improvement in 95 of 100 experiments when the differences
    are near normal. The verdict is *better* or *worse* when it lies on one side of
    0, and *not shown* when it does not, when fewer than 8 pairs have a value in
    both arms, or when a value is infinite, as percentiles are of requests that
    never ended. Without a queue in either arm there was nothing to schedule.

    Parameters
    ----------
    baseline, policy
        One number for each replication, NaN where the metric has none.
    higher_is_better
        Direction of the metric; improvements are positive either way.
    queued
        Whether any request of these runs ever waited.

    """
    pairs = np.array([baseline, policy], dtype=np.float64)
    pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
    endless = int(np.isinf(pairs).any(axis=0).sum())
    n = pairs.shape[1]
    means = pairs.mean(axis=1) if n else np.full(2, np.nan)
    gains: FloatArray = (
        np.zeros(0) if endless else _gains(pairs[0], pairs[1], 1 if higher_is_better else -1)
    )
    improvement = float(gains.mean()) if len(gains) else math.nan
    low, high = _interval(gains)
    verdict, reason = Verdict.NOT_SHOWN, ""
    if not queued:
        verdict, reason = Verdict.NOTHING_TO_SCHEDULE, "no request ever waited"
    elif not n:
        reason = "no value in any pair"
    elif endless:
        reason = f"without end in {endless} of {n} pairs"
    elif n < FEWEST_PAIRS:
        reason = f"{n} pairs, {FEWEST_PAIRS} needed"
    elif low > 0.0:
        verdict = Verdict.BETTER
    elif high < 0.0:
        verdict = Verdict.WORSE
    return Comparison(
        float(means[0]), float(means[1]), improvement, low, high, n - endless, verdict, reason
    )


def _gains(baseline: FloatArray, policy: FloatArray, sign: int) -> FloatArray:
    gains = (policy - baseline) * sign
    # Clocks that add up in another order differ in the last digits, which is no gain.
    rounding = ROUNDING * np.maximum(np.abs(baseline), np.abs(policy))
    return np.where(np.abs(gains) <= rounding, 0.0, gains)


def _interval(gains: FloatArray) -> tuple[float, float]:
    """Student interval of the mean; a single point when all gains are equal."""
    n = len(gains)
    if n < 2:
        return math.nan, math.nan
    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(n)
    # Equal gains have a mean that rounding may put beside them, and then a tiny error.
    if gains.min() == gains.max():
        return float(gains[0]), float(gains[0])
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2.0, n - 1)) * error
    return mean - reach, mean + reach
