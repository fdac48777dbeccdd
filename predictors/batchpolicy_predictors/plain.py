"""Predictions that know nothing of the request: its ceiling, or a number of the operator's."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from batchpolicy.predictor import Arrivals, LengthDist, Predictor


class MaxTokens(Predictor):
    """Every answer is as long as its client allows: nothing is ever evicted, and much idles."""

    as_told: ClassVar[bool] = True

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist.exactly(batch.max_tokens)

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 4e-6 * (rows > 0)


class Constant(Predictor):
    """Every answer has the same length, as far as its client allows."""

    as_told: ClassVar[bool] = True

    output_tokens: PositiveInt
    """Tokens of an answer."""

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist.exactly(np.minimum(batch.max_tokens, self.output_tokens))

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 4e-6 * (rows > 0)
