"""The order that a ranking means."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from batchpolicy.requests import FloatArray, IntArray, Requests

Rows = npt.NDArray[np.intp]

_GROUPS, _LARGE = 128, 16


class Seqs(Protocol):
    """Submission numbers by row: an array, or ``SeqsOf`` what is asked for."""

    def __getitem__(self, rows: Rows, /) -> IntArray:
        """Those of some rows, shape ``(k,)``."""
        ...


class SeqsOf:
    """The submission numbers of requests, gathered when they decide: few of a queue's ever do."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def __getitem__(self, rows: Rows) -> IntArray:
        return self._requests.take(rows).seq


def best_first(benefit: FloatArray, tier: IntArray | None, seq: Seqs, k: int) -> Rows:
    """Rows of the ``k`` best by (``tier``, ``-benefit``, ``seq``), in that order.

    All arrays have shape ``(n,)`` and ``benefit`` is finite. Only rows that can be
    among the best are sorted, so that a long queue costs one or two partitions.
    """
    n = len(benefit)
    if k <= 0 or n == 0:
        return np.empty(0, dtype=np.intp)
    if k >= n:
        rows = np.arange(n)
    elif tier is None:
        rows = _candidates(benefit, k)
        if len(rows) > k:
            values = benefit[rows]
            # The worst that is among the best, and all that tie with it.
            worst = np.partition(values, len(rows) - k)[len(rows) - k]
            above = rows[values > worst]
            rows = np.concatenate([above, _least(seq, rows[values == worst], k - len(above))])
    else:
        rows = _least(tier, np.arange(n), k)
        if len(rows) > k:
            rows = _cut(benefit, tier, seq, rows, k)
    keys = (seq[rows], -benefit[rows]) if tier is None else (seq[rows], -benefit[rows], tier[rows])
    return rows[np.lexsort(keys)][:k]


def _candidates(benefit: FloatArray, k: int) -> Rows:
    """Rows among which the ``k`` best are, with all that tie with them.

    Of any ``k`` groups' best rows the worst is no better than the k-th of all. That is soon
    found, and few rows are left, where a partition of values that tie takes long.
    """
    n, groups = len(benefit), max(_GROUPS, 2 * k)
    of_each = n // groups
    if of_each < _LARGE:
        return np.flatnonzero(benefit >= np.partition(benefit, n - k)[n - k])
    best = np.maximum.reduce(benefit[: of_each * groups].reshape(of_each, groups))
    return np.flatnonzero(benefit >= np.partition(best, groups - k)[groups - k])


def _cut(benefit: FloatArray, tier: IntArray, seq: Seqs, rows: Rows, k: int) -> Rows:
    """Of the rows that tie at the last tier, only those whose benefit, then seq, reach k."""
    last = tier[rows].max()
    sure, open_rows = rows[tier[rows] < last], rows[tier[rows] == last]
    best = best_first(benefit[open_rows], None, seq[open_rows], k - len(sure))
    return np.concatenate([sure, open_rows[best]])


def _least(key: Seqs, rows: Rows, k: int) -> Rows:
    """The rows whose key is among the ``k`` least, ties with the k-th included."""
    if k >= len(rows):
        return rows
    values = key[rows]
    reached: Rows = rows[values <= np.partition(values, k - 1)[k - 1]]
    return reached
