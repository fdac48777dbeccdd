"""Tests and intervals of a mean: Student's t, mended for skewness, against turned signs.

When swapping the arms of a pair only turns the sign of its difference, as it does when the
arms differ by chance, every turn of signs is as likely as the one observed, whatever the
tails are and for any number of pairs: levels are exact, for any statistic that is ranked
among its values under the turns. An effect that differs from pair to pair may be skewed,
which turned signs are not. The statistic is Hall's: t transformed so that skewness moves
its distribution little, so that it can be ranked among turned ones all the same. Ties
count by half, else whole numbers and shares would be found different too seldom.

References
----------
J. A. Hartigan, "Using subsample values as typical values", J. Am. Stat. Assoc. 64, 1969,
for balanced families of turns. P. Hall, "On the removal of skewness by transformation",
J. R. Stat. Soc. B 54, 1992. H. O. Lancaster, "Significance tests in discrete
distributions", J. Am. Stat. Assoc. 56, 1961, for the halved ties.
"""

from __future__ import annotations

import functools

import numpy as np

from batchpolicy.requests import BoolArray, FloatArray

BITS = 10
"""Up to so many pairs all turns are taken, and of more pairs 2^10 that are balanced."""
_TIE = 1e-9
"""Statistics that are closer than this, on a scale from -1 to 1, differ by rounding only."""
_COLUMNS = 200
"""Experiments that are worked out at once, so that thousands fit into memory."""
_GRID, _HALVINGS = 24, 24
"""Where an end of an interval is looked for: places on the way in, then halvings."""


@functools.cache
def turns(n: int) -> FloatArray:
    """Signs of ``n`` pairs, a row of 1 and -1 for each turn; the first turns nothing.

    They form a group under the product, which is what makes the levels exact: all turns
    of few pairs, else the words of a linear code in which the signs of any three pairs
    are independent of each other. The same for equal ``n``.
    """
    bits = min(n, BITS) if n <= 1 << (BITS - 2) else n.bit_length() + 2
    columns = 1 << np.arange(min(bits, n))
    if n > bits:
        # Sums of two words of odd weight have even weight, so that no three columns depend.
        odd = np.arange(1, 1 << bits)
        odd = odd[(_parity(odd) == 1) & (odd & (odd - 1) != 0)]
        more = np.random.default_rng(n).choice(odd, n - bits, replace=False)
        columns = np.concatenate([columns, more])
    words = np.arange(1 << bits)
    return 1.0 - 2.0 * _parity(words[:, None] & columns[None, :])


def p_negative(values: FloatArray) -> FloatArray:
    """How likely values so far below 0 are when the mean is 0, column by column.

    The one-sided p-value: the share of turns whose statistic is less than the observed
    one, and half of those where it is equal. Shape ``(n,)`` or ``(n, m)``.
    """
    columns = values.reshape(len(values), -1)
    p = np.empty(columns.shape[1])
    for first in range(0, columns.shape[1], _COLUMNS):
        part = slice(first, first + _COLUMNS)
        p[part] = _below(columns[:, part])
    return p.reshape(values.shape[1:])


def mean_interval(values: FloatArray, confidence: float) -> tuple[float, float]:
    """Ends of the interval of the mean of ``values``, shape ``(n,)``; see ``ratio_interval``."""
    return ratio_interval(values, np.ones_like(values), confidence)


def ratio_interval(over: FloatArray, under: FloatArray, confidence: float) -> tuple[float, float]:
    """Ends of the interval of ``mean(over) / mean(under)``, arrays of shape ``(n,)``.

    From the least to the greatest ratio for which a mean of ``over - ratio * under`` of 0
    is not rejected. ``under`` is positive. NaN with too few pairs for the confidence,
    which are five for 95%.
    """
    tail = (1.0 - confidence) / 2.0
    if 0.5 / len(turns(len(over))) > tail:
        return float("nan"), float("nan")
    low = -_end(-over, under, tail)
    return low, _end(over, under, tail)


def _end(over: FloatArray, under: FloatArray, tail: float) -> float:
    """The greatest ratio that is not rejected as too great."""
    middle, last = float(over.mean() / under.mean()), float((over / under).max())

    def kept(ratios: FloatArray) -> BoolArray:
        return p_negative(over[:, None] - ratios * under[:, None]) > tail

    # Past the greatest ratio of a pair, all differences are negative; from there inwards.
    grid = np.linspace(last, middle, _GRID)
    first = int(np.argmax(kept(grid)))
    if not first:
        return last if kept(grid[:1])[0] else middle
    outside, inside = float(grid[first - 1]), float(grid[first])
    for _ in range(_HALVINGS):
        between = 0.5 * (outside + inside)
        if kept(np.array([between]))[0]:
            inside = between
        else:
            outside = between
    return inside


def _below(values: FloatArray) -> FloatArray:
    scale = np.abs(values).max(axis=0)
    values = values / np.where(scale > 0.0, scale, 1.0)
    signs, n = turns(len(values)), len(values)
    statistic = _statistic(signs @ values / n, signs @ values**3 / n, (values**2).mean(axis=0), n)
    less = (statistic < statistic[0] - _TIE).sum(axis=0)
    equal = (np.abs(statistic - statistic[0]) <= _TIE).sum(axis=0)
    found: FloatArray = (less + 0.5 * equal) / len(signs)
    return found


def _statistic(mean: FloatArray, cubes: FloatArray, squares: FloatArray, n: int) -> FloatArray:
    """Hall's transformed t from the mean powers, pressed into -1 to 1.

    With ``t`` and the skewness ``g``: ``t + g t^2 / (3 sqrt n) + g^2 t^3 / (27 n) +
    g / (6 sqrt n)``, which rises with ``t``.
    """
    variance = squares - mean**2
    # Values that are all equal leave rounding.
    equal = variance <= 1e-14 * squares
    variance = np.where(equal, 1.0, variance)
    skewness = (cubes - 3.0 * mean * squares + 2.0 * mean**3) / variance**1.5
    t = (n / variance) ** 0.5 * mean
    a = skewness / (3.0 * n**0.5)
    transformed = t + a * t**2 + a**2 * t**3 / 3.0 + 0.5 * a
    return np.where(equal, np.sign(mean), transformed / (1.0 + np.abs(transformed)))


def _parity(words: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> FloatArray:
    folded = words.copy()
    for shift in (32, 16, 8, 4, 2, 1):
        folded ^= folded >> shift
    return (folded & 1).astype(np.float64)
