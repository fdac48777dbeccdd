"""How long answers are, learned from those that ended and those that go on."""

from __future__ import annotations

from collections import deque

import numpy as np

from batchpolicy.predictor import as_much_again
from batchpolicy.requests import FloatArray, IntArray

MOST = 512
"""Answers that are remembered, the latest ones."""
FEW = 32
"""Answers after which the imagined ones are forgotten."""
IMAGINED = (0.25, 0.5, 0.75, 1.0)
"""Answers before any was seen, as parts of what may be: a batch that starts too large is
evicted, so that long ones are among them."""


class LengthHistory:
    """Survival of answers by their age, and what is to come of each given its age.

    The product-limit estimate: running requests count as answers longer than their age,
    without which the first ones to end, the short ones, would seem to be all there are.

    References
    ----------
    E. L. Kaplan and P. Meier, "Nonparametric Estimation from Incomplete Observations",
    J. Amer. Stat. Assoc. 53, 1958. That the latest outputs predict the next ones: R. Gong
    et al., "Past-Future Scheduler", ASPLOS 2025, which samples where this counts.
    """

    def __init__(self, first_guess_tokens: int) -> None:
        self._seen: deque[int] = deque(maxlen=MOST)
        self._imagined = first_guess_tokens * np.array(IMAGINED)
        self._ended: FloatArray | None = self._imagined
        """Ascending; None until somebody looks, after more have ended."""
        self._lengths = self._imagined
        self._survival = np.array([1.0, 0.75, 0.5, 0.25, 0.0])
        """Part of the answers that go on after the first k of ``_lengths``."""

    @property
    def guesses(self) -> bool:
        """Whether imagined answers still count."""
        return len(self._seen) < FEW

    def add(self, output_tokens: int) -> None:
        """An answer ended with so many tokens."""
        self._seen.append(output_tokens)
        self._ended = None

    def look(self, ages: IntArray) -> None:
        """Take into account those that run, with so many tokens out each."""
        if self._ended is None:
            seen = np.array(self._seen, dtype=np.float64)
            self._ended = np.sort(np.concatenate([seen, self._imagined]) if self.guesses else seen)
        ended = self._ended
        running = np.sort(ages)
        # Who has put out as many tokens as one that ended is still going on beyond it.
        at_risk = np.arange(len(ended), 0, -1) + (
            len(running) - np.searchsorted(running, ended, side="left")
        )
        self._lengths = ended
        self._survival = np.concatenate([[1.0], np.cumprod(1.0 - 1.0 / at_risk)])

    def given(self, age: FloatArray, levels: FloatArray) -> FloatArray:
        """Quantiles of the totals once more than ``age`` tokens are out, shape ``(n, k)``."""
        lengths, survival = self._lengths, self._survival
        goes_on = survival[np.searchsorted(lengths, age, side="right")]
        target = goes_on[:, None] * (1.0 - levels)
        place = np.searchsorted(-survival[1:], -target)
        found = lengths[np.minimum(place, len(lengths) - 1)]
        # Beyond what was seen the age, or the longest answer, is all that is known.
        beyond = place >= len(lengths)
        if beyond.any():
            base = np.maximum(age, lengths[-1])
            rest = np.where(age >= lengths[-1], goes_on, survival[-1])[:, None]
            tail = base[:, None] * np.minimum(rest / np.maximum(target, 1e-12), 100.0)
            found = np.where(beyond, tail, found)
        outlived = age >= lengths[-1]
        if outlived.any():
            found[outlived] = as_much_again(age[outlived], levels)
        return found
