"""What generators draw: lengths, arrivals, and who sends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from batchpolicy.requests import FloatArray, IntArray


def generator(name: str, k: int, seed: int) -> np.random.Generator:
    """Random numbers of replication ``k`` of the workload ``name``."""
    return np.random.default_rng([seed, k, *name.encode()])


def lengths(
    rng: np.random.Generator, n: int, *, median: float, sigma: float, low: int, high: int
) -> IntArray:
    """Tokens of ``n`` requests: lognormal, cut off at ``low`` and ``high``."""
    drawn = median * np.exp(sigma * rng.standard_normal(n))
    return np.clip(np.rint(drawn), low, high).astype(np.int64)


def poisson_arrivals(rng: np.random.Generator, n: int, span_s: float) -> FloatArray:
    """``n`` arrivals of a Poisson process, given that they fall into ``span_s``; sorted."""
    return np.sort(rng.uniform(0.0, span_s, n))


def bulk_arrivals(
    rng: np.random.Generator, n: int, span_s: float, *, size: int, gap_s: float
) -> FloatArray:
    """``n`` arrivals in jobs of ``size``, the last one smaller; sorted.

    Jobs start at random times; the requests of a job follow each other at ``gap_s``.
    """
    starts = poisson_arrivals(rng, -(-n // size), span_s)
    within = gap_s * (np.arange(n) % size)
    return np.sort(np.repeat(starts, size)[:n] + within)


def burst_arrivals(
    rng: np.random.Generator, n: int, span_s: float, *, on_frac: float, period_s: float
) -> FloatArray:
    """``n`` arrivals that come only in the first ``on_frac`` of each period; sorted.

    The first period starts at a random time before 0, so that replications differ.
    """
    on_s = np.sort(rng.uniform(0.0, span_s * on_frac, n))
    whole = np.floor(on_s / (on_frac * period_s))
    shifted = on_s + whole * (1.0 - on_frac) * period_s + rng.uniform(0.0, period_s)
    return np.sort(shifted % span_s)


def senders(rng: np.random.Generator, shares: Mapping[str, float], n: int) -> list[str]:
    """Tenant of each of ``n`` requests, drawn by the shares."""
    weights = np.array(list(shares.values()), dtype=np.float64)
    names = list(shares)
    return [names[i] for i in rng.choice(len(names), size=n, p=weights / weights.sum())]
