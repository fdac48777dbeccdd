"""The ratio of two means over the same replications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchpolicy_tuning.statistics import CONFIDENCE
from batchpolicy_tuning.turned_signs import ratio_interval


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two means over the same seeds, with its interval at 95%; NaN ends without one."""

    over: float
    under: float
    low: float
    high: float

    @classmethod
    def of(cls, over: Sequence[float], under: Sequence[float]) -> Ratio:
        """The mean of ``over`` by that of ``under``, paired."""
        one, other = np.array(over, dtype=np.float64), np.array(under, dtype=np.float64)
        positive = bool((other > 0.0).all())
        low, high = ratio_interval(one, other, CONFIDENCE) if positive else (np.nan, np.nan)
        return cls(float(one.mean()), float(other.mean()), float(low), float(high))

    @property
    def value(self) -> float:
        """The ratio; of nothing by nothing it is 1, of something by nothing inf."""
        if self.under:
            return self.over / self.under
        return float("inf") if self.over > 0.0 else 1.0

    def __str__(self) -> str:
        if np.isnan(self.low):
            return f"{self.value:.2f}x"
        return f"{self.value:.2f}x [{self.low:.2f}, {self.high:.2f}]"
