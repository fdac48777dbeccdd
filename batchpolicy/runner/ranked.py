"""The waiting rows, in the order that the policy gives them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from batchpolicy.policy import Ranking
from batchpolicy.requests import BoolArray, Requests
from batchpolicy.runner.order import Rows, SeqsOf, best_first


@dataclass(frozen=True, slots=True)
class Ranked:
    """Rows of ``waiting`` with their ranking; those that are not ``open`` stay out of a plan."""

    waiting: Requests
    ranking: Ranking
    open: BoolArray | None

    def only(self, rows: BoolArray) -> Ranked:
        """The same with the rows outside of a mask closed."""
        if rows.all():
            return self
        return replace(self, open=rows if self.open is None else self.open & rows)

    def best(self, among: BoolArray | None, k: int) -> Rows:
        """The ``k`` open rows of a mask that rank first, best first."""
        mask = among if self.open is None else self.open if among is None else among & self.open
        benefit, tier, seq = self.ranking.benefit, self.ranking.tier, SeqsOf(self.waiting)
        if mask is None:
            return best_first(benefit, tier, seq, k)
        rows = np.flatnonzero(mask)
        return rows[best_first(benefit[rows], None if tier is None else tier[rows], seq[rows], k)]

    def held_for(self, rows: Rows, k: int) -> BoolArray | None:
        """Closed rows that would be among the ``k`` best, which are ``rows``; None for nobody."""
        if self.open is None:
            return None
        if len(rows) < k:
            return ~self.open
        benefit, tier = self.ranking.benefit, self.ranking.tier
        # Overdue rows may stand anywhere.
        last = rows[-1]
        before: BoolArray = benefit > benefit[last]
        if tier is not None:
            before = (tier < tier[last]) | ((tier == tier[last]) & before)
        return before & ~self.open

    def worst(self, among: BoolArray, k: int) -> Rows:
        """The ``k`` rows of a mask that rank last, the last first."""
        rows = np.flatnonzero(among)
        benefit, tier = self.ranking.benefit[rows], self.ranking.tier
        last = None if tier is None else -tier[rows]
        return rows[best_first(-benefit, last, -self.waiting.seq[rows], k)]
