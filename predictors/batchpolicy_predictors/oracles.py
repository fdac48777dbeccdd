"""Predictors that know the true lengths, for replays: what prediction could be worth at best."""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from batchpolicy.predictor import LEVELS, TRUTH, Arrivals, LengthDist, Predictor, within
from batchpolicy.requests import IntArray

_NORMAL = NormalDist()
_DEVIATES = np.array([_NORMAL.inv_cdf(level) for level in LEVELS])


class Oracle(Predictor):
    """The true length; in replays only."""

    as_told: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({TRUTH})

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist.exactly(_truth(batch))


class NoisyOracle(Predictor):
    """The true length times a lognormal error, and quantiles that know the error's size.

    The error depends on the seed and on the request's id alone, so that every engine and
    every policy is told the same.
    """

    requires: ClassVar[frozenset[str]] = frozenset({TRUTH})

    log_sigma: Annotated[float, Field(ge=0, le=3)] = 0.3
    """Standard deviation of the error's logarithm."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Other seeds give other errors."""

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        error = np.array([_deviate(f"{self.seed} {i}") for i in batch.request_id])
        median = _truth(batch).astype(np.float64) * np.exp(self.log_sigma * error)
        spread = np.exp(self.log_sigma * _DEVIATES)
        return within(median[:, None] * spread, batch.max_tokens)


def _truth(batch: Arrivals) -> IntArray:
    if batch.truth is None:
        raise ValueError("the true lengths are not known here; only replays have them")
    return batch.truth


def _deviate(text: str) -> float:
    """A standard normal number that is the same wherever Python runs."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return _NORMAL.inv_cdf((number + 0.5) * math.ldexp(1.0, -64))
