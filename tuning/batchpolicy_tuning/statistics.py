"""Paired comparison of two policies over replications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from batchpolicy.requests import FloatArray
from batchpolicy_tuning.turned_signs import mean_interval, p_negative, ratio_interval

FEWEST_PAIRS = 8
"""With fewer, the interval says more about the replications than about the policies."""
CONFIDENCE = 0.95
LEVEL = 0.05
"""Of one-sided tests: equivalence and gates."""
MARGIN = 0.05
"""Changes up to this part of the baseline are equivalent, unless told otherwise."""
ROUNDING = 1e-9
"""Differences up to this part of the values are none."""
_NO_ENDS = (math.nan, math.nan, math.nan, math.nan)


class Verdict(StrEnum):
    """What a comparison has shown."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
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
    relative_low: float
    relative_high: float
    """Ends of the interval of ``improvement / scale``; NaN unless all baselines are positive."""
    pairs: int
    """Pairs in which both have a finite value."""
    verdict: Verdict
    within_margin: bool = False
    """Whether the change is shown to be within the margin, which a small gain may be too."""
    reason: str = ""
    """Why there is no interval, where there is none."""

    @property
    def scale(self) -> float:
        """What 100% of improvement would be: the baseline's mean; NaN where that is 0."""
        return abs(self.baseline) or math.nan


def compare(
    baseline: Sequence[float],
    policy: Sequence[float],
    *,
    higher_is_better: bool = False,
    in_points: bool = False,
    margin: float = MARGIN,
    queued: bool = True,
) -> Comparison:
    """Compare two arms that saw the same workloads, pair by pair.

    The intervals, at 95%, are those of ``turned_signs``: of the mean difference, and of the
    change of the mean relative to the baseline's. The verdict is *better* or *worse*
    when they lie on one side of 0, however small the difference is; else *equivalent*
    when two one-sided tests at 5% show that the change is within the margin, and *not
    shown* when they do not, or when fewer than 8 pairs have a value in both arms.
    Without a queue in either arm there was *nothing to schedule*.

    A value is infinite when it is a percentile of requests that never ended. Such a
    pair counts for whichever arm has an end, by more than all others together; when
    both lack it, for none. There is no interval then.

    Parameters
    ----------
    baseline, policy
        One number for each replication, NaN where the metric has none.
    higher_is_better
        Direction of the metric; improvements are positive either way.
    in_points
        Whether the margin counts in the metric's unit, as for shares, and not in
        parts of the baseline.
    margin
        Largest change that is equivalent.
    queued
        Whether any request of these runs ever waited.

    """
    pairs = np.array([baseline, policy], dtype=np.float64)
    pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
    endless = int(np.isinf(pairs).any(axis=0).sum())
    n = pairs.shape[1]
    means = pairs.mean(axis=1) if n else np.full(2, np.nan)
    sign = 1.0 if higher_is_better else -1.0
    verdict, reason, within = Verdict.NOT_SHOWN, "", False
    improvement, ends = math.nan, _NO_ENDS
    gains = sign * differences(pairs[0], pairs[1]) + 0.0
    if n and not endless:
        improvement = float(gains.mean())
        ends = _intervals(gains, pairs[0])
    if not queued:
        verdict, reason = Verdict.NOTHING_TO_SCHEDULE, "no request ever waited"
    elif not n:
        reason = "no value in any pair"
    elif n < FEWEST_PAIRS:
        reason = f"{n} pairs, {FEWEST_PAIRS} needed"
    else:
        within = not endless and _is_within(pairs[0], sign * gains, margin, in_points)
        if endless:
            reason = f"without end in {endless} of {n} pairs"
        # The interval also holds what lies between two changes that are not rejected.
        low, high, _, _ = ends
        if p_negative(-gains) <= (1.0 - CONFIDENCE) / 2.0 and not low <= 0.0:
            verdict = Verdict.BETTER
        elif p_negative(gains) <= (1.0 - CONFIDENCE) / 2.0 and not high >= 0.0:
            verdict = Verdict.WORSE
        elif within:
            verdict = Verdict.EQUIVALENT
    low, high, relative_low, relative_high = ends
    return Comparison(
        baseline=float(means[0]),
        policy=float(means[1]),
        improvement=improvement,
        low=low,
        high=high,
        relative_low=relative_low,
        relative_high=relative_high,
        pairs=n - endless,
        verdict=verdict,
        within_margin=within,
        reason=reason,
    )


def differences(baseline: FloatArray, policy: FloatArray) -> FloatArray:
    """Policy less baseline, pair by pair; finite, see ``compare`` for values without end."""
    with np.errstate(invalid="ignore"):
        found = policy - baseline
    found = np.where(np.isnan(found), 0.0, found)
    # Clocks that add up in another order differ in the last digits, which is no gain.
    rounding = ROUNDING * np.maximum(np.abs(baseline), np.abs(policy))
    ends = np.isfinite(found)
    found = np.where(ends & (np.abs(found) <= rounding), 0.0, found)
    # More than all that has an end, in whatever part of the baseline it is counted.
    finite = np.abs(baseline[np.isfinite(baseline)])
    longest = 1.0 + float(np.abs(found[ends]).sum() + 2.0 * finite.sum())
    return np.clip(found, -longest, longest)


def changed_by(
    baseline: FloatArray, difference: FloatArray, change: float, in_points: bool
) -> FloatArray:
    """How far each pair is above a change: its mean is 0 where the change is just that.

    ``policy - (1 + change) * baseline``, or without the baseline where it is in points.
    """
    allowed = np.full_like(baseline, change) if in_points else change * baseline
    return difference - np.where(np.isfinite(allowed), allowed, 0.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of tests that are made together, in their order.

    Those up to a level are shown at that level all at once: the chance that any of
    them is shown wrongly is at most the level.

    References
    ----------
    S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J.
    Stat. 6, 1979.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min((len(p_values) - rank) * p_values[i], 1.0))
        adjusted[i] = least
    return adjusted


def _intervals(gains: FloatArray, baseline: FloatArray) -> tuple[float, float, float, float]:
    """Interval of the mean gain, then of the mean gain over the mean baseline."""
    low, high = mean_interval(gains, CONFIDENCE)
    if not (baseline > 0.0).all():
        return low, high, math.nan, math.nan
    return low, high, *ratio_interval(gains, baseline, CONFIDENCE)


def _is_within(
    baseline: FloatArray, difference: FloatArray, margin: float, in_points: bool
) -> bool:
    if not difference.any():
        return True
    above = p_negative(changed_by(baseline, difference, margin, in_points))
    below = p_negative(-changed_by(baseline, difference, -margin, in_points))
    return bool(max(above, below) <= LEVEL)
