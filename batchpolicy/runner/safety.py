"""How many standard deviations of KV to keep in hand, learned from the evictions."""

from __future__ import annotations

from statistics import NormalDist

MOST = 3.0
"""Above, less than one answer in a thousand would be evicted."""
PULL = 0.1
"""What one evicted request adds, in standard deviations."""


class Safety:
    """Standard deviations above the expected KV that must fit, moved with each answer.

    An answer that was evicted on its way adds ``PULL * (1 - rate)``, one that was not takes
    ``PULL * rate`` off: where it comes to rest, just ``rate`` of them are evicted, whatever
    is wrong with the lengths that are assumed.

    References
    ----------
    I. Gibbs and E. Candes, "Adaptive Conformal Inference Under Distribution Shift",
    NeurIPS 2021.
    """

    def __init__(self, quantile: float, max_preemption_rate: float | None) -> None:
        """From the normal ``quantile`` on; it stays there without a rate to keep."""
        self.deviations = NormalDist().inv_cdf(quantile)
        self._rate = max_preemption_rate
        self._least = min(self.deviations, 0.0)
        self._most = max(self.deviations, MOST)

    def answered(self, evicted: bool) -> None:
        """An answer is complete; whether its KV was dropped on the way, for want of room."""
        if self._rate is None:
            return
        moved = self.deviations + PULL * (float(evicted) - self._rate)
        self.deviations = min(max(moved, self._least), self._most)
