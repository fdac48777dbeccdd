"""Quantiles of answers that were seen, some of them cut short."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from batchpolicy.predictor import LEVELS
from batchpolicy.requests import BoolArray, FloatArray

DEVIATES: FloatArray = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
"""Of a standard normal number at ``LEVELS``."""
FEW = 32
"""Answers from which on a window speaks for itself."""


def sample_quantiles(values: FloatArray, levels: FloatArray = LEVELS) -> FloatArray:
    """Quantiles of what comes next after ``values``, which ascend.

    The k-th of n stands at level k / (n + 1): the chance that another draw of the same kind
    is no larger, whatever its distribution (split conformal prediction: V. Vovk et al.,
    "Algorithmic Learning in a Random World", 2005).
    """
    n = len(values)
    return np.interp(levels, np.arange(1, n + 1) / (n + 1), values)


def cut_quantiles(values: FloatArray, cut: BoolArray) -> FloatArray:
    """``sample_quantiles`` where the answers in ``cut`` ended at their ceiling, not by themselves.

    The product-limit estimate (Kaplan and Meier, J. Amer. Stat. Assoc. 53, 1958): how long
    they would have become is taken from those that grew longer. ``values`` may be in any
    order; if the longest were cut, nothing beyond them is known.
    """
    if not cut.any():
        return sample_quantiles(np.sort(values))
    order = np.lexsort((cut, values))
    values = values[order]
    n = len(values)
    goes_on = np.cumprod(1.0 - ~cut[order] / np.arange(n, 0, -1))
    ended = 1.0 - goes_on
    ended[-1] = 1.0
    return np.interp(LEVELS, ended * n / (n + 1), values)


def between(one: FloatArray, other: FloatArray, weight: FloatArray | float) -> FloatArray:
    """Quantiles so far from ``one`` to ``other``, on the scale of logarithms; both ascend."""
    start = np.log(one)
    mixed: FloatArray = np.exp(start + weight * (np.log(other) - start))
    # The ends themselves, to the last bit: lengths are whole numbers, often the same ones.
    mixed = np.where((one == other) | (np.asarray(weight) <= 0.0), one, mixed)
    mixed = np.where(np.asarray(weight) >= 1.0, other, mixed)
    # Rounding may not turn equal neighbours around.
    return np.maximum.accumulate(mixed, axis=-1)


def guessed(tokens: float) -> FloatArray:
    """Quantiles before anything was seen: around a guess, and wide."""
    return np.maximum(tokens * np.exp(DEVIATES), 1.0)


class Window:
    """The latest answers, and quantiles of the next one."""

    def __init__(self, most: int, before: FloatArray) -> None:
        self._most = most
        self._values: FloatArray = np.zeros(min(most, FEW))
        self._cut: BoolArray = np.zeros(min(most, FEW), dtype=np.bool_)
        self._count = 0
        """Answers that ever came; in a full window the next one takes the oldest's place."""
        self._before = before
        """Quantiles that count until there are ``FEW`` answers, less with each."""
        self.quantiles = before

    def __len__(self) -> int:
        return min(self._count, self._most)

    def add(self, tokens: float, cut: bool) -> None:
        """An answer ended; ``settle`` when all of a batch are in."""
        if self._count == len(self._values) < self._most:
            more = min(len(self._values), self._most - len(self._values))
            self._values = np.append(self._values, np.zeros(more))
            self._cut = np.append(self._cut, np.zeros(more, dtype=np.bool_))
        place = self._count % self._most
        self._values[place], self._cut[place] = tokens, cut
        self._count += 1

    def settle(self, before: FloatArray | None = None) -> None:
        """Take what was added into the quantiles; ``before`` replaces the first guess."""
        if before is not None:
            self._before = before
        found = cut_quantiles(self._values[: len(self)], self._cut[: len(self)])
        few = len(self) / FEW
        self.quantiles = found if few >= 1.0 else between(self._before, found, few)
