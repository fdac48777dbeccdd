"""How much a model counts beside the history of lengths, by what either would have lost."""

from __future__ import annotations

import numpy as np

from batchpolicy.predictor import LEVELS
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_predictors.samples import between

SHARES: FloatArray = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
"""Ways from the history's quantiles to the model's of which the losses are kept."""
MOST = 256
"""Answers that are remembered, the latest ones."""
BELIEVED = 64
"""For how many answers the losses of the training count at the start."""
_RATE = 0.5
"""How fast a share falls behind that loses more, by mean losses."""


def losses(history: FloatArray, said: FloatArray, output_tokens: FloatArray) -> FloatArray:
    """Pinball loss of each share at each of ``LEVELS``, shape ``(n, 5, 9)``, in tokens.

    ``history`` and ``said`` are quantiles of shape ``(n, 9)``, ``output_tokens`` of ``(n,)``.
    """
    above = output_tokens[:, None, None] - between(
        history[:, None, :], said[:, None, :], SHARES[:, None]
    )
    found: FloatArray = np.maximum(LEVELS * above, (LEVELS - 1.0) * above)
    return found


class Weighing:
    """The way from history to model at each level, for the next answer.

    An exponentially weighted average of the shares over a window, for each level by itself:
    prompts may tell a typical answer and yet nothing of the longest tenth, and a model that
    meets other requests may be worth less than in training, or more.

    References
    ----------
    V. Vovk, "Aggregating Strategies", COLT 1990; N. Cesa-Bianchi and G. Lugosi, "Prediction,
    Learning, and Games", 2006, of which the window is no part: it follows what changes.
    """

    def __init__(self, trained: FloatArray) -> None:
        """``trained``: mean losses in training, shape ``(5, 9)``, in parts of a typical answer."""
        self._seen = np.zeros((MOST, *trained.shape))
        self._seen[:BELIEVED] = trained
        self._next = BELIEVED
        """Where the next answer goes, of all that ever came; the oldest makes room."""
        self.weights: FloatArray
        """What the model counts at ``LEVELS``, 0 to 1, shape ``(9,)``."""
        self._weigh()

    def add(
        self, history: FloatArray, said: FloatArray, output_tokens: IntArray, typical_tokens: float
    ) -> None:
        """Answers came of which this had been said; without any nothing happens.

        In parts of what is typical at their time, so that a hundred short answers outweigh the
        long ones before them.
        """
        found = losses(history, said, output_tokens.astype(np.float64)) / typical_tokens
        for one in found[-MOST:]:
            self._seen[self._next % MOST] = one
            self._next += 1
        if len(found):
            self._weigh()

    def _weigh(self) -> None:
        total = self._seen.sum(axis=0)
        typical = total.mean(axis=0) / min(self._next, MOST)
        behind = (total - total.min(axis=0)) / np.maximum(typical, 1e-12)
        counts = np.exp(-_RATE * behind)
        self.weights = SHARES @ counts / counts.sum(axis=0)
