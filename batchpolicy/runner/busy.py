"""How much of the recent past the engine spent on steps."""

from __future__ import annotations

import math

WINDOW_S = 5.0
"""Age at which a moment counts a third (1/e) of the present one."""


class Busy:
    """Share of the time in which a step ran, recent time counting most.

    A moment of age ``a`` counts ``exp(-a / WINDOW_S)``, and nothing before the first tick
    does. A step runs from its tick until its results are back; of steps that overlap,
    each moment counts once. All from ticks and elapsed times, so that ranks agree.
    """

    __slots__ = ("_at_s", "_busy_s", "_total_s", "_until_s")

    def __init__(self) -> None:
        self._at_s = math.nan
        """Time up to which the weighted sums reach: the start of the latest busy stretch."""
        self._busy_s = self._total_s = 0.0
        self._until_s = math.nan

    def begin(self, now_s: float) -> None:
        """A tick."""
        if math.isnan(self._at_s):
            self._at_s = self._until_s = now_s

    def ran(self, now_s: float, elapsed_s: float) -> None:
        """Results came ``elapsed_s`` after the latest tick, which was at ``now_s``."""
        end_s = now_s + elapsed_s
        if end_s <= self._until_s:
            return
        if now_s > self._until_s:
            self._busy_s, self._total_s = self._sums(now_s)
            self._at_s = now_s
        self._until_s = end_s

    def frac(self, now_s: float) -> float:
        """Share of the time until now, from 0 to 1; NaN when none has passed."""
        busy_s, total_s = self._sums(now_s)
        return busy_s / total_s if total_s > 0.0 else math.nan

    def _sums(self, now_s: float) -> tuple[float, float]:
        """Weighted busy and whole time until now."""
        passed_s = max(now_s - self._at_s, 0.0)
        # Busy first, from the start of the latest stretch to its end, then idle.
        idle_s = max(now_s - self._until_s, 0.0)
        old, idle = math.exp(-passed_s / WINDOW_S), math.exp(-idle_s / WINDOW_S)
        busy_s = self._busy_s * old + WINDOW_S * (idle - old)
        return busy_s, self._total_s * old + WINDOW_S * (1.0 - old)
