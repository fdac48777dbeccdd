"""Boosted regression trees as arrays, all evaluated at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchpolicy.requests import FloatArray

DEPTH = 3
"""Most questions between root and leaf."""
NODES, LEAVES = 2**DEPTH - 1, 2**DEPTH
Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


def _leaf_of_answers() -> npt.NDArray[np.intp]:
    """The leaf that is reached, for each way in which all questions of a tree may come out.

    Bit ``NODES - node`` of an index, the highest but none, is set where ``node`` sends to
    the right; the lowest bit is of no node.
    """
    found = np.empty(256, dtype=np.intp)
    for answers in range(256):
        node = 0
        while node < NODES:
            node = 2 * node + 1 + (answers >> (NODES - node) & 1)
        found[answers] = node - NODES
    return found


_LEAF = _leaf_of_answers()


@dataclass(frozen=True, slots=True)
class Trees:
    """A sum of complete binary trees of depth 3, the children of node k being 2k+1 and 2k+2.

    Each question is whether a feature is above its threshold; then it goes to the right.
    All are asked, whether they matter or not, which array code does faster than following
    a path: 64 rows through 150 trees are 80,000 comparisons.
    """

    start: float
    """What the trees add to."""
    feature: Int32Array
    """Shape ``(trees, 8)``; the last column, which pads the questions to a byte, is 0."""
    threshold: Float32Array
    """Shape ``(trees, 8)``; ``inf`` where there is nothing to ask."""
    value: FloatArray
    """Shape ``(trees, 8)``, of the leaves from left to right, shrinkage included."""

    def __len__(self) -> int:
        return len(self.feature)

    def predict(self, features: Float32Array) -> FloatArray:
        """Their sum for each row of ``features``, shape ``(n, k)``, as shape ``(n,)``."""
        n, count = len(features), len(self)
        if not count:
            return np.full(n, self.start)
        asked = features.take(self.feature.ravel(), axis=1) > self.threshold.ravel()
        leaf = _LEAF.take(np.packbits(asked, axis=1))
        leaf += np.arange(0, LEAVES * count, LEAVES)
        # cumsum adds from left to right whatever the number of rows; sum would not.
        total = np.cumsum(self.value.ravel().take(leaf), axis=1)[:, -1]
        result: FloatArray = self.start + total
        return result
