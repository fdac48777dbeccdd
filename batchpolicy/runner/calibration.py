"""Predictions held against the answers that came: their bias and their spread."""

from __future__ import annotations

from collections import deque

import numpy as np

from batchpolicy.predictor import as_much_again
from batchpolicy.requests import FloatArray

MOST = 512
"""Answers that are remembered, the latest ones."""
ENOUGH = 64
"""Answers before which predictions are taken as they are."""
REFIT = 16
"""New answers after which the fit is made anew."""
_EXACT = 1e-9
"""An error below is none: logarithms round."""


class Calibration:
    """True lengths as ``exp(a + b log(predicted)) * error``, from the latest answers.

    The line shrinks a noisy prediction towards the typical answer, so that a useless one
    (``b`` 0) ends as the history of lengths and an exact one stays as it is; errors are
    those that were seen, whatever the predictor says of its own.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=MOST + REFIT)
        self._new = 0
        """The latest ones, which have no part in the fit yet."""
        self.ready = False
        """Whether enough answers were seen."""
        self._stale = False
        """A fit is due, and made once somebody asks."""
        self._line = (0.0, 1.0)
        self._errors: FloatArray = np.zeros(0)
        """Ascending."""

    def add(self, predicted: float, output_tokens: int) -> None:
        """An answer of which the median was predicted ended with so many tokens."""
        self._seen.append((predicted, float(output_tokens)))
        self._new += 1
        if self._new >= (REFIT if self.ready else ENOUGH):
            self._new, self.ready, self._stale = 0, True, True

    def given(self, predicted: FloatArray, age: FloatArray, levels: FloatArray) -> FloatArray:
        """Quantiles of the totals once more than ``age`` tokens are out, shape ``(n, k)``."""
        if self._stale:
            self._fit()
        start, slope = self._line
        center = start + slope * np.log(predicted)
        errors, n = self._errors, len(self._errors)
        passed = np.searchsorted(errors, np.log(np.maximum(age, 0.5)) - center, side="right")
        place = passed[:, None] + ((n - passed)[:, None] * levels).astype(np.intp)
        # Whole tokens, but for what logarithms lose.
        found = np.ceil(np.exp(center[:, None] + errors[np.minimum(place, n - 1)]) - 1e-6)
        outlived = passed >= n
        if outlived.any():
            found[outlived] = as_much_again(age[outlived], levels)
        return found

    def _fit(self) -> None:
        self._stale = False
        # As they were when it became due, whenever somebody asks.
        seen = np.array(self._seen)[: len(self._seen) - self._new]
        x, y = np.log(seen[-MOST:]).T
        dx, dy = x - x.mean(), y - y.mean()
        around = float(dx @ dx)
        slope = min(max(float(dx @ dy) / around, 0.0), 1.0) if around > _EXACT else 1.0
        errors = y - slope * x
        start = float(errors.mean())
        errors -= start
        errors[np.abs(errors) < _EXACT] = 0.0
        if abs(start) < _EXACT:
            start = 0.0
        self._line = (start, slope)
        self._errors = np.sort(errors)
