"""How much KV the running requests may hold at any time to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from batchpolicy.requests import FloatArray

PATHS = 8
"""Lengths that stand for the distribution of one request's answer."""
PATH_LEVELS: FloatArray = (np.arange(PATHS) + 0.5) / PATHS
AT_ONCE = 16
"""Candidates whose lengths are looked up at a time: few of those in a plan are asked about."""
MOST_TIMES = 512
"""Times that are looked at; fewer than there are ends only where hundreds of lengths differ."""
# A request of which the r longest of its lengths go on does so with probability r / PATHS. What
# each of them adds to the probability, and to its variance, in that order:
_RANK = np.arange(PATHS, 0, -1)
_CHANCE = np.full(PATHS, 1.0 / PATHS)
_VARIANCE = 1.0 / PATHS - (2.0 * _RANK - 1.0) / PATHS**2


class Coming(NamedTuple):
    """Candidates whose lengths have been looked up."""

    left: FloatArray
    """Steps until they may end; shape ``(n, PATHS)``, ascending along rows."""
    rest: float
    """What the last block of each may take beyond its tokens."""


class Peak:
    """KV tokens over the rest of the answers, if no more start than are added here.

    A request that holds ``own`` tokens holds ``own + t`` after ``t`` steps if it goes on that
    long, and nothing afterwards; what it shares with others stays. Its ``left`` are
    ``PATHS`` equally likely lengths, so that expectation and variance of the sum over
    requests follow for any ``t``, and the most that may be needed is their sum with so many
    ``deviations``, or all going on, whichever is less. It peaks where one ends, so only
    such times are looked at. Where lengths are known this is the exact peak.

    References
    ----------
    R. Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees",
    ASPLOS 2025, for the peak of known lengths, and for sampled ones; ``max_tokens`` is a
    ceiling here, never a reservation.
    """

    def __init__(
        self,
        own: FloatArray,
        left: FloatArray,
        coming: Callable[[int, int], Coming],
        *,
        shared_tokens: float,
        most_tokens: float,
        deviations: float,
    ) -> None:
        """``own`` has shape ``(n,)``, ``left`` ``(n, PATHS)``, ascending along rows.

        ``coming`` tells of candidates from one place to another, as they are asked about.
        """
        self._own, self._left = own, left
        self._coming = coming
        self._most = most_tokens - shared_tokens
        self._deviations = deviations
        self._taken: list[tuple[float, FloatArray]] = []
        """Candidates since times were chosen."""
        self._first = 0
        self._ahead = coming(0, AT_ONCE)
        self._times = self._mean = self._variance = self._all = np.empty(0)
        self._look()

    @property
    def tokens(self) -> float:
        """The most that may be needed, shared tokens apart."""
        return self._highest(self._mean, self._variance, self._all)

    def takes(self, own: int, place: int) -> bool:
        """Add the candidate in that place, with ``own`` tokens at its start, if all will fit.

        Candidates are asked about in order.
        """
        if place - self._first >= AT_ONCE:
            self._first, self._ahead = place, self._coming(place, place + AT_ONCE)
            self._look()
        times = self._times
        ends = self._ahead.left[place - self._first]
        held = own + self._ahead.rest + times
        chance = (PATHS - np.searchsorted(ends, times)) / PATHS
        likely = held * chance
        mean, every = self._mean + likely, self._all + held
        variance = self._variance + likely * (held - likely)
        alone = not (len(self._own) or self._taken)
        if not alone and self._highest(mean, variance, every) > self._most:
            return False
        self._mean, self._variance, self._all = mean, variance, every
        self._taken.append((float(held[0] - times[0]), ends))
        return True

    def _look(self) -> None:
        """Choose the times at which rows, and the candidates ahead, may end."""
        if self._taken:
            self._own = np.concatenate([self._own, [own for own, _ in self._taken]])
            self._left = np.concatenate([self._left, [left for _, left in self._taken]])
            self._taken.clear()
        own, n = self._own, len(self._own)
        ends = self._left.ravel()
        order = np.argsort(-ends, kind="stable")
        times = np.unique(np.concatenate([ends, self._ahead.left.ravel()]))
        if len(times) > MOST_TIMES:
            times = times[np.linspace(0, len(times) - 1, MOST_TIMES).round().astype(np.intp)]
        going = np.searchsorted(-ends[order], -times, side="right")
        owns = np.repeat(own, PATHS)[order]
        chance, variance = np.tile(_CHANCE, n)[order], np.tile(_VARIANCE, n)[order]

        def held(weight: FloatArray) -> FloatArray:
            return np.concatenate([[0.0], np.cumsum(weight)])[going]

        self._times = times
        self._mean = held(chance * owns) + held(chance) * times
        self._variance = (
            held(variance * owns * owns)
            + 2.0 * times * held(variance * owns)
            + times * times * held(variance)
        )
        self._all = own.sum() + n * times

    def _highest(self, mean: FloatArray, variance: FloatArray, every: FloatArray) -> float:
        spread = np.sqrt(np.maximum(variance, 0.0))
        return float(np.minimum(mean + self._deviations * spread, every).max(initial=0.0))
