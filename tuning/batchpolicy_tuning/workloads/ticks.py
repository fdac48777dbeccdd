"""Arrivals of a trace whose clock is coarse."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import FloatArray


def spread(ticks_s: FloatArray, seed: int) -> FloatArray:
    """Arrivals that fall evenly into the time from their tick to the next one; sorted.

    Requests of one tick keep their order. The last tick lasts as long as the median of
    the others, and where there is only one, no time at all. ``ticks_s`` is sorted,
    shape ``(n,)``; the draw is the same for equal arguments.
    """
    ticks, tick_of = np.unique(ticks_s, return_inverse=True)
    gaps_s = np.diff(ticks)
    lasts_s = np.append(gaps_s, np.median(gaps_s) if len(gaps_s) else 0.0)
    drawn = np.random.default_rng([seed, *b"ticks"]).random(len(ticks_s))
    drawn = drawn[np.lexsort((drawn, tick_of))]
    arrivals_s: FloatArray = ticks_s + drawn * lasts_s[tick_of]
    return arrivals_s
