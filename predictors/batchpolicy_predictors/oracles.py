"""Predictors that know the true lengths, for replays: what prediction could be worth at best."""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, PositiveInt, model_validator
from typing_extensions import override

from batchpolicy.predictor import TRUTH, Arrivals, LengthDist, Predictor, within
from batchpolicy.requests import IntArray
from batchpolicy_predictors.samples import DEVIATES

DEFAULT_LOG_SIGMA = 0.3
_NORMAL = NormalDist()


class Oracle(Predictor):
    """The true length; in replays only."""

    as_told: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({TRUTH})

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist.exactly(_truth(batch))

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        # What nobody has to work out is there at once.
        return 0.0


class NoisyOracle(Predictor):
    """The true length with an error of a given size, and quantiles that know that size.

    By ``log_sigma`` the length is multiplied by a lognormal error. By ``tau`` its logarithm is
    mixed with a number that has nothing to do with it, so that predictions are spread like
    lengths and have that rank correlation with them: exactly 0 and 1, and between them if
    lengths are lognormal with ``typical_tokens`` and ``typical_log_sigma``.

    The error depends on the seed and on the request's id alone, so that every engine and
    every policy is told the same.
    """

    requires: ClassVar[frozenset[str]] = frozenset({TRUTH})

    log_sigma: Annotated[float, Field(ge=0, le=3)] | None = None
    """Standard deviation of the error's logarithm; without a ``tau`` it is 0.3."""
    tau: Annotated[float, Field(ge=0, le=1)] | None = None
    """Kendall's rank correlation of predictions and lengths, in place of ``log_sigma``."""
    typical_tokens: PositiveInt = 256
    """With ``tau``: the median of the lengths."""
    typical_log_sigma: Annotated[float, Field(gt=0, le=3)] = 1.0
    """With ``tau``: the standard deviation of their logarithm."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Other seeds give other errors."""

    @model_validator(mode="after")
    def _err_in_one_way(self) -> Self:
        if self.tau is not None and self.log_sigma is not None:
            raise ValueError("log_sigma and tau are two ways to err; give one of them")
        return self

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        error = np.array([_deviate(f"{self.seed} {i}") for i in batch.request_id])
        truth = _truth(batch).astype(np.float64)
        if self.tau is None:
            sigma = DEFAULT_LOG_SIGMA if self.log_sigma is None else self.log_sigma
            median = truth * np.exp(sigma * error)
        else:
            # Of two normal numbers, tau is 2 / pi * asin(correlation).
            kept = math.sin(self.tau * math.pi / 2.0)
            length = np.log(truth / self.typical_tokens)
            noise = math.sqrt(1.0 - kept**2) * self.typical_log_sigma
            median = (
                truth
                if kept == 1.0
                else self.typical_tokens * np.exp(kept * length + noise * error)
            )
            sigma = math.sqrt(2.0 * (1.0 - kept)) * self.typical_log_sigma
        spread = np.exp(sigma * DEVIATES)
        return within(median[:, None] * spread, batch.max_tokens)

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        # What nobody has to work out is there at once.
        return 0.0


def _truth(batch: Arrivals) -> IntArray:
    if batch.truth is None:
        raise ValueError("the true lengths are not known here; only replays have them")
    return batch.truth


def _deviate(text: str) -> float:
    """A standard normal number that is the same wherever Python runs."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return _NORMAL.inv_cdf((number + 0.5) * math.ldexp(1.0, -64))
