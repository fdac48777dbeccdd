"""Processes of arrivals in a stretch of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import Discriminator, PositiveFloat, Tag

from batchpolicy.component import Component
from batchpolicy.requests import FloatArray


class Poisson(Component):
    """Independent arrivals: exponential gaps."""

    process: Literal["poisson"] = "poisson"

    def draw(self, rng: np.random.Generator, rate: float, span_s: float) -> FloatArray:
        """Arrivals from 0 to ``span_s``, sorted; ``rate`` a second on average."""
        return np.sort(rng.uniform(0.0, span_s, rng.poisson(rate * span_s)))


class Gamma(Component):
    """Gamma gaps with a coefficient of variation: over 1 is burstier than Poisson."""

    process: Literal["gamma"] = "gamma"
    cv: PositiveFloat
    """Standard deviation of the gaps, over their mean."""

    def draw(self, rng: np.random.Generator, rate: float, span_s: float) -> FloatArray:
        """Arrivals from 0 to ``span_s``, sorted; ``rate`` a second on average."""
        shape = self.cv**-2
        scale_s = 1.0 / (rate * shape)
        # Whoever starts to look at a random time falls into a gap in proportion to its length,
        # and anywhere in it.
        now_s = rng.random() * rng.gamma(shape + 1.0, scale_s)
        found: list[FloatArray] = []
        while now_s < span_s:
            gaps_s = rng.gamma(shape, scale_s, size=256)
            times_s = now_s + np.concatenate(([0.0], np.cumsum(gaps_s)))
            found.append(times_s[:-1])
            now_s = float(times_s[-1])
        arrivals_s = np.concatenate(found) if found else np.empty(0)
        return arrivals_s[arrivals_s < span_s]


class OnOff(Component):
    """Each tenant sends for a while and is silent for a while, both exponential.

    While it sends, arrivals are Poisson, at a rate that makes the mean over all time
    the one that is asked for.
    """

    process: Literal["on-off"] = "on-off"
    on_s: PositiveFloat
    """Mean time of sending."""
    off_s: PositiveFloat
    """Mean time of silence."""

    def draw(self, rng: np.random.Generator, rate: float, span_s: float) -> FloatArray:
        """Arrivals of one tenant from 0 to ``span_s``, sorted; ``rate`` a second on average."""
        on_frac = self.on_s / (self.on_s + self.off_s)
        on = bool(rng.random() < on_frac)
        now_s, found = 0.0, list[FloatArray]()
        while now_s < span_s:
            # Exponential times have no memory: the first may have begun long ago.
            until_s = min(now_s + rng.exponential(self.on_s if on else self.off_s), span_s)
            if on:
                n = rng.poisson(rate / on_frac * (until_s - now_s))
                found.append(np.sort(rng.uniform(now_s, until_s, n)))
            now_s, on = until_s, not on
        return np.concatenate(found) if found else np.empty(0)


def process(given: Any) -> Any:
    """Which process a mapping, or one that is made, is."""
    if isinstance(given, dict):
        return cast("dict[str, Any]", given).get("process")
    return getattr(given, "process", None)


Arrivals = Poisson | Gamma | OnOff
AnyArrivals = Annotated[
    Annotated[Poisson, Tag("poisson")]
    | Annotated[Gamma, Tag("gamma")]
    | Annotated[OnOff, Tag("on-off")],
    Discriminator(process),
]
"""What files and Python may give for a process."""


def draw_senders(
    arrivals: Arrivals,
    rng: np.random.Generator,
    rate: float,
    span_s: float,
    shares: Mapping[str, float],
) -> tuple[FloatArray, list[str]]:
    """Arrivals from 0 to ``span_s``, sorted, and the tenant of each.

    Tenants that go on and off do so by themselves; of other processes each arrival
    is some tenant's, drawn by the shares.
    """
    names, weights = list(shares), np.array(list(shares.values()), dtype=np.float64)
    weights /= weights.sum()
    if not isinstance(arrivals, OnOff):
        times_s = arrivals.draw(rng, rate, span_s)
        who = rng.choice(len(names), size=len(times_s), p=weights)
    else:
        each = [arrivals.draw(rng, rate * float(share), span_s) for share in weights]
        times_s = np.concatenate(each)
        who = np.repeat(np.arange(len(names)), [len(times) for times in each])
        order = np.argsort(times_s, kind="stable")
        times_s, who = times_s[order], who[order]
    return times_s, [names[i] for i in who]
