"""How far answers came out from where they were expected, from training and from service."""

from __future__ import annotations

from collections import deque

import numpy as np

from batchpolicy.requests import FloatArray
from batchpolicy_predictors.samples import sample_quantiles

MOST = 512
"""Errors that are remembered, the latest ones."""
BELIEVED = 64
"""For how many errors of its own those of the training count at the start."""
RECENT = 32
"""Latest errors that are held against those before: a shift shows in them first."""
CERTAIN = 4.0
"""Standard errors from which on a difference is a shift."""


class Residuals:
    """Quantiles of the next error; errors of before a shift are forgotten.

    Online split conformal prediction over a window: the level that was asked for is kept
    as long as errors are exchangeable within it.

    References
    ----------
    I. Gibbs and E. Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS
    2021, which moves the level where this moves the window.
    """

    def __init__(self, trained: FloatArray) -> None:
        """``trained``: ascending quantiles of the errors in training."""
        places = (np.arange(BELIEVED) + 0.5) / BELIEVED
        spread = np.interp(places, np.linspace(0.0, 1.0, len(trained)), trained)
        # In an order in which any run of them is as spread out as all.
        order = np.argsort(np.arange(BELIEVED) * 0.6180339887498949 % 1.0, kind="stable")
        self._seen: deque[float] = deque(spread[order].tolist(), maxlen=MOST)
        self._new = 0
        self.shifts = 0
        """How often errors were forgotten."""
        self.quantiles = sample_quantiles(np.sort(spread))
        """At ``LEVELS``, shape ``(9,)``."""

    def add(self, errors: FloatArray) -> None:
        """Answers came, so far from what was expected each."""
        for error in errors.tolist():
            self._seen.append(error)
            self._new += 1
            if self._new % (RECENT // 2) == 0:
                self._forget_if_shifted()
        if len(errors):
            self.quantiles = sample_quantiles(np.sort(np.array(self._seen)))

    def _forget_if_shifted(self) -> None:
        seen = np.array(self._seen)
        if self._new < RECENT or len(seen) < 2 * RECENT:
            return
        before, recent = seen[:-RECENT], seen[-RECENT:]
        noise = np.sqrt(before.var() / len(before) + recent.var() / RECENT)
        if abs(recent.mean() - before.mean()) > CERTAIN * max(float(noise), 1e-9):
            self._seen = deque(recent.tolist(), maxlen=MOST)
            self.shifts += 1
