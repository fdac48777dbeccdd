"""KV that was found to abound, and what may have started on it since."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from batchpolicy.requests import Requests

CLEAR_STEPS = 16
"""Steps for which KV that abounded is taken to abound, if those that start do not need it."""


class Sizes(NamedTuple):
    """Largest of some requests: none of them may put out more than these say."""

    median: float
    """Predicted; 0 where nothing is."""
    high: float
    """The highest quantile that is predicted."""
    ceiling: float


def sizes_of(*views: Requests) -> Sizes:
    """The largest sizes in all of these rows."""
    found = [
        (
            np.fmax.reduce(rows.predicted_output_tokens, initial=0.0),
            np.fmax.reduce(rows.output_quantiles[:, -1], initial=0.0),
            np.max(rows.max_tokens, initial=0),
        )
        for rows in views
    ]
    return Sizes(*(float(max(column)) for column in zip(*found, strict=True)))


class Clearance:
    """Tokens that come at most: of those looked at, and of whoever else could start since then.

    Each request is counted once, whether it starts or not, and nobody is taken off who ends,
    so that a step costs a look at who is new among its candidates.
    """

    def __init__(self) -> None:
        self.tokens = 0.0
        self.each = 0.0
        """Of one that nobody has looked at."""
        self._until = -1
        """The step from which on it is worked out anew, as answers grow older than expected."""
        self._counted: set[int] = set()
        """By submission number."""
        self._sizes: Sizes | None = None
        """What ``each`` holds for; None for whoever is not predicted."""

    def seen(
        self, index: int, rows: tuple[Requests, Requests], each: float, sizes: Sizes | None
    ) -> None:
        """In step ``index`` these were looked at; others may put out ``each``, if not larger."""
        self._until, self.each, self._sizes = index + CLEAR_STEPS, each, sizes
        self._counted = {seq for view in rows for seq in view.seq.tolist()}

    def still(self, best: Requests, spare: float, index: int) -> bool:
        """Whether what was found to fit lately does so with these candidates as well."""
        if index >= self._until:
            return False
        new = [seq for seq in best.seq.tolist() if seq not in self._counted]
        if new:
            if not self._are_known(best):
                return False
            self._counted.update(new)
            self.tokens += len(new) * self.each
        return self.tokens <= spare

    def _are_known(self, best: Requests) -> bool:
        """Whether nobody among the candidates may put out more than those looked at."""
        if self._sizes is None:
            return best.at_default("predicted_output_tokens")
        return all(one <= most for one, most in zip(sizes_of(best), self._sizes, strict=True))
