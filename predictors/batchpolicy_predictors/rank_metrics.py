"""How well one order agrees with another."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import FloatArray, IntArray

MOST = 4000
"""Rows beyond which evenly spaced ones are compared."""
_CELLS = 250_000


def kendall_tau(one: FloatArray | IntArray, other: FloatArray | IntArray) -> float:
    """Kendall's tau-b: agreeing less disagreeing pairs, ties taken off; NaN if all are tied.

    M. Kendall, "The Treatment of Ties in Ranking Problems", Biometrika 33, 1945.
    """
    agree, disagree, tied_one, tied_other, _ = _pairs(one, other)
    ordered = agree + disagree
    scale = np.sqrt(float(ordered + tied_other) * float(ordered + tied_one))
    return float((agree - disagree) / scale) if scale else float("nan")


def concordance(predicted: FloatArray | IntArray, truth: FloatArray | IntArray) -> float:
    """Chance that of two answers the longer was predicted longer, a half for equal predictions.

    The C-index of F. Harrell et al., JAMA 247, 1982; NaN if all answers are equally long.
    """
    agree, disagree, tied_predicted, _, _ = _pairs(predicted, truth)
    count = agree + disagree + tied_predicted
    return float((agree + 0.5 * tied_predicted) / count) if count else float("nan")


def _pairs(
    one: FloatArray | IntArray, other: FloatArray | IntArray
) -> tuple[int, int, int, int, int]:
    """Pairs that agree, disagree, are tied in the first only, the second only, and in both."""
    if len(one) > MOST:
        rows = np.linspace(0, len(one) - 1, MOST).astype(np.intp)
        one, other = one[rows], other[rows]
    n = len(one)
    counts = np.zeros(5, dtype=np.int64)
    block = max(1, _CELLS // max(n, 1))
    for start in range(0, n, block):
        stop = start + block
        first = np.sign(one[start:stop, None] - one)
        second = np.sign(other[start:stop, None] - other)
        same = first * second
        no_first, no_second = first == 0, second == 0
        counts += [
            np.count_nonzero(same > 0),
            np.count_nonzero(same < 0),
            np.count_nonzero(no_first & ~no_second),
            np.count_nonzero(no_second & ~no_first),
            np.count_nonzero(no_first & no_second),
        ]
    # Each pair was met twice, and each row with itself.
    counts[4] -= n
    agree, disagree, tied_one, tied_other, both = (counts // 2).tolist()
    return agree, disagree, tied_one, tied_other, both
