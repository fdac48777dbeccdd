"""How long the next step will take, by what the last ones took."""

from __future__ import annotations

from abc import abstractmethod

from typing_extensions import override

from batchpolicy.step_cost import StepCost, StepShape

GAIN = 0.5
"""Part of an error that one step corrects."""
MOST_OFF = 4.0
"""How many times too long or too short a given cost may be."""
# Sizes of a step that is large in one respect, so that all weights are of one magnitude.
_TOKENS, _CONTEXT, _PAIRS = 1.0 / 512, 1.0 / 65_536, 1.0 / 2**21


class MeasuredCost(StepCost):
    """A step cost that measured steps correct."""

    @abstractmethod
    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step of that shape took so long."""


class LearnedCost(MeasuredCost):
    """A sum of four parts, learned from the steps themselves.

    A fixed part, then parts in proportion to tokens, to the context that decodes read and to
    the pairs of the prompts' attention. Each step corrects ``GAIN`` of its error, by the parts
    in the measure in which they contribute (normalised least mean squares), so that the shapes
    served now come out right after a few steps. No part falls below 0: a step never gets
    shorter for more tokens. Before the first step all are 0.

    References
    ----------
    B. Widrow and M. E. Hoff, "Adaptive Switching Circuits", IRE WESCON, 1960.
    """

    __slots__ = ("_knows", "_weights")

    def __init__(self) -> None:
        self._weights = [0.0, 0.0, 0.0, 0.0]
        self._knows = False

    @override
    def __call__(self, shape: StepShape) -> float:
        fixed, tokens, context, pairs = self._weights
        _, by_tokens, by_context, by_pairs = _sizes(shape)
        return fixed + tokens * by_tokens + context * by_context + pairs * by_pairs

    @override
    def observe(self, shape: StepShape, seconds: float) -> None:
        sizes = _sizes(shape)
        gain = GAIN if self._knows else 1.0
        self._knows = True
        change = gain * (seconds - self(shape)) / sum(x * x for x in sizes)
        self._weights = [
            max(w + change * x, 0.0) for w, x in zip(self._weights, sizes, strict=True)
        ]


class CorrectedCost(MeasuredCost):
    """A given cost, times how much longer than that steps have been."""

    __slots__ = ("_cost", "_factor")

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._factor = 1.0

    @override
    def __call__(self, shape: StepShape) -> float:
        return self._factor * self._cost(shape)

    @override
    def observe(self, shape: StepShape, seconds: float) -> None:
        given_s = self._cost(shape)
        if given_s > 0.0:
            factor = min(max(seconds / given_s, 1.0 / MOST_OFF), MOST_OFF)
            self._factor += GAIN * (factor - self._factor)


def _sizes(shape: StepShape) -> tuple[float, float, float, float]:
    return (
        1.0,
        _TOKENS * (shape.prefill_tokens + shape.decodes),
        _CONTEXT * shape.decode_context,
        _PAIRS * shape.attention,
    )
