"""The order that a ranking means."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchpolicy.requests import FloatArray, IntArray

Rows = npt.NDArray[np.intp]


def best_first(benefit: FloatArray, tier: IntArray | None, seq: IntArray, k: int) -> Rows:
    """Rows of the ``k`` best by (``tier``, ``-benefit``, ``seq``), in that order.

    All arrays have shape ``(n,)`` and ``benefit`` is finite. Only rows that can be
    among the best are sorted, so that a long queue costs one or two partitions.
    """
    n = len(benefit)
    if k <= 0 or n == 0:
        return np.empty(0, dtype=np.intp)
    rows = np.arange(n)
    if k < n:
        if tier is not None:
            rows = _least(tier, rows, k)
        if len(rows) > k:
            rows = _cut(benefit, tier, seq, rows, k)
    keys = (seq[rows], -benefit[rows]) if tier is None else (seq[rows], -benefit[rows], tier[rows])
    return rows[np.lexsort(keys)][:k]


def _cut(benefit: FloatArray, tier: IntArray | None, seq: IntArray, rows: Rows, k: int) -> Rows:
    """Of the rows that tie at the last tier, only those whose benefit, then seq, reach k."""
    if tier is None:
        sure, open_rows = rows[:0], rows
    else:
        last = tier[rows].max()
        sure, open_rows = rows[tier[rows] < last], rows[tier[rows] == last]
    need = k - len(sure)
    open_rows = _least(-benefit, open_rows, need)
    if len(open_rows) > need:
        worst = benefit[open_rows].min()
        above, ties = open_rows[benefit[open_rows] > worst], open_rows[benefit[open_rows] == worst]
        open_rows = np.concatenate([above, _least(seq, ties, need - len(above))])
    return np.concatenate([sure, open_rows])


def _least(key: npt.NDArray[np.float64] | IntArray, rows: Rows, k: int) -> Rows:
    """The rows whose key is among the ``k`` least, ties with the k-th included."""
    if k >= len(rows):
        return rows
    values = key[rows]
    reached: Rows = rows[values <= np.partition(values, k - 1)[k - 1]]
    return reached
