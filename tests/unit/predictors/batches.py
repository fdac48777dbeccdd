"""Batches for tests of predictors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchpolicy.predictor import Arrivals, Predictor


def batch(
    n: int = 1,
    *,
    tenant: str | Sequence[str] = "",
    ceiling: int = 10_000,
    prompt: int = 10,
    ids: Sequence[Sequence[int]] | None = None,
    truth: Sequence[int] | None = None,
) -> Arrivals:
    """Alike requests, but for what is given one by one."""
    return Arrivals(
        [f"r{i}" for i in range(n)],
        np.full(n, prompt),
        np.full(n, ceiling),
        [tenant] * n if isinstance(tenant, str) else list(tenant),
        None if truth is None else np.array(truth),
        ids,
    )


def told(predictor: Predictor, lengths: Sequence[int], tenant: str = "") -> None:
    """Let a predictor hear of answers, one after another."""
    for tokens in lengths:
        predictor.observe(batch(tenant=tenant), np.array([tokens]))


def median(predictor: Predictor, tenant: str = "", ceiling: int = 10_000) -> float:
    """What it expects of one request."""
    said = predictor.predict(batch(tenant=tenant, ceiling=ceiling))
    return float(said.quantile(0.5)[0])
