"""Intervals and tests from the means of random halves of the pairs.

When swapping the arms of a pair only turns the sign of its difference, as it does when
the arms differ by chance, the true mean is as likely to fall between any two neighbours
among the means of a balanced family of subsets of the pairs. The levels are then exact,
however heavy the tails are and for any number of pairs. An interval holds just what a
test of Student's t against the same differences with signs turned does not reject: under
the mean it tests, sums of squares do not change with the signs, so that t rises with the
mean alone, and it reaches the observed one where the mean of the turned pairs lies below.

References
----------
J. A. Hartigan, "Using subsample values as typical values", J. Am. Stat. Assoc. 64, 1969.
"""

from __future__ import annotations

import functools

import numpy as np

from batchpolicy.requests import BoolArray, FloatArray

BITS = 12
"""Up to so many pairs all subsets are taken, and of more pairs 2^12 that are balanced."""
_CRUMB = 1e-12
_COLUMNS = 500
"""Experiments that are worked out at once, so that thousands fit into memory."""


@functools.cache
def subsets(n: int) -> FloatArray:
    """Nonempty subsets of ``n`` pairs, a row of 0 and 1 each.

    With the empty one they form a group under the symmetric difference, which is what
    makes the levels exact: all subsets for few pairs, else the words of a linear code
    in which any three pairs are in or out independently of each other. The same
    for equal ``n``.
    """
    bits = min(n, BITS) if n <= 1 << (BITS - 2) else n.bit_length() + 2
    columns = 1 << np.arange(min(bits, n))
    if n > bits:
        # Sums of two words of odd weight have even weight, so that no three columns depend.
        odd = np.arange(1, 1 << bits)
        odd = odd[(_parity(odd) == 1) & (odd & (odd - 1) != 0)]
        more = np.random.default_rng(n).choice(odd, n - bits, replace=False)
        columns = np.concatenate([columns, more])
    words = np.arange(1, 1 << bits)
    return _parity(words[:, None] & columns[None, :]).astype(np.float64)


def mean_interval(values: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Ends of the interval of the mean of each column; shape ``(n,)`` or ``(n, m)``.

    NaN with too few rows for the confidence, which are five for 95%.
    """
    return ratio_interval(values, np.ones_like(values), confidence)


def ratio_interval(
    over: FloatArray, under: FloatArray, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Ends of the interval of ``mean(over) / mean(under)``, column by column.

    Exact when ``over - ratio * under`` is as likely as its negative at the true ratio,
    as it is when an arm takes so many times as long as the other, however much the
    pairs differ among themselves. ``under`` is positive.
    """
    chosen = subsets(len(over))
    tail = int((1.0 - confidence) / 2.0 * (len(chosen) + 1) + 1e-9)
    columns = over.reshape(len(over), -1)
    below = under.reshape(len(under), -1)
    low, high = (np.full(columns.shape[1], np.nan) for _ in range(2))
    if tail:
        ends = [tail - 1, len(chosen) - tail]
        for first in range(0, columns.shape[1], _COLUMNS):
            part = slice(first, first + _COLUMNS)
            ratios = (chosen @ columns[:, part]) / (chosen @ below[:, part])
            low[part], high[part] = np.partition(ratios, ends, axis=0)[ends]
    return low.reshape(over.shape[1:]), high.reshape(over.shape[1:])


def p_negative(values: FloatArray) -> FloatArray:
    """How likely values so far below 0 are when the mean is 0, column by column.

    The one-sided p-value: the share of subsets, the empty one included, whose sum is
    not negative. At most 2.5% exactly when the interval at 95% ends below 0.
    """
    chosen = subsets(len(values))
    columns = values.reshape(len(values), -1)
    # What cancels exactly on paper must not count as negative for its last digit.
    crumbs = _CRUMB * np.abs(columns).sum(axis=0)
    p = np.empty(columns.shape[1])
    for first in range(0, columns.shape[1], _COLUMNS):
        part = slice(first, first + _COLUMNS)
        reached: BoolArray = chosen @ columns[:, part] >= -crumbs[part]
        p[part] = (reached.sum(axis=0) + 1) / (len(chosen) + 1)
    return p.reshape(values.shape[1:])


def _parity(words: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> FloatArray:
    folded = words.copy()
    for shift in (32, 16, 8, 4, 2, 1):
        folded ^= folded >> shift
    return (folded & 1).astype(np.float64)
