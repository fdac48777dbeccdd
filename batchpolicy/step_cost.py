"""How long a step takes on some hardware."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, NamedTuple, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from typing_extensions import override

from batchpolicy.component import Component


class StepShape(NamedTuple):
    """The work of one engine step."""

    prefill_tokens: int = 0
    """New prompt tokens, recomputation included."""
    attention: float = 0.0
    """Sum over prefills of new * (context + new / 2), in token pairs."""
    prefill_context: int = 0
    """Tokens already in the KV cache for those prefills, summed."""
    decodes: int = 0
    """Sequences that decode one token."""
    decode_context: int = 0
    """Tokens in their KV caches, summed."""
    sequences: int = 0
    """All sequences of the step."""

    def with_prefill(self, tokens: int) -> StepShape:
        """The same step and ``tokens`` more of one prompt, which has ``prefill_context`` cached.

        Without tokens nobody reads that context, unless the step has other prefills.
        """
        if not tokens:
            return self if self.prefill_tokens else self._replace(prefill_context=0)
        return self._replace(
            prefill_tokens=self.prefill_tokens + tokens,
            attention=self.attention + tokens * (self.prefill_context + tokens / 2),
            sequences=self.sequences + 1,
        )


class StepCost(ABC):
    """Seconds that a step of some shape takes."""

    @abstractmethod
    def __call__(self, shape: StepShape) -> float:
        """Duration of the step in seconds; 0 for an empty one."""

    def prefill_within(self, seconds: float, shape: StepShape, most: int) -> int:
        """Prompt tokens, at most ``most``, with which the step still ends within ``seconds``.

        They join ``shape`` as ``StepShape.with_prefill`` says. The largest such number where
        the cost never falls with tokens, else one of them; 0 where there is none.
        """
        if most <= 0 or self(shape.with_prefill(most)) <= seconds:
            return max(most, 0)
        fits, too_many = 0, most
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self(shape.with_prefill(middle)) <= seconds:
                fits = middle
            else:
                too_many = middle
        return fits


class AdjustableCost(Component, StepCost):
    """A cost that calibration can bring near to a real engine; parameters a file can hold."""

    @abstractmethod
    def adjusted(self, scale: float, overhead_s: float) -> Self:
        """The same cost times ``scale``, plus ``overhead_s`` for each step that takes time."""


class OutsideCost(AdjustableCost):
    """A cost whose numbers lie outside: in files, in another package, in a user's code."""

    scale: PositiveFloat = 1.0
    """What each duration is multiplied by."""
    overhead_s: NonNegativeFloat = 0.0
    """What is added to each step that takes time, after that."""

    @abstractmethod
    def plain(self, shape: StepShape) -> float:
        """Duration in seconds before ``scale`` and ``overhead_s``."""

    @override
    def __call__(self, shape: StepShape) -> float:
        seconds = self.plain(shape)
        return self.scale * seconds + self.overhead_s if seconds > 0.0 else 0.0

    @override
    def adjusted(self, scale: float, overhead_s: float) -> Self:
        changes = {"scale": self.scale * scale, "overhead_s": self.overhead_s * scale + overhead_s}
        return self.model_copy(update=changes)


class FormulaCost(AdjustableCost):
    """Reading the weights or multiplying by them, then attention and the rest, added up.

    With ``T`` the prefill and decode tokens of the step,

        base_s + (weights_s**k + (token_s * T)**k)**(1 / k)
        + attention_pair_s * attention
        + prefill_context_token_s * prefill_context
        + decode_context_token_s * decode_context
        + mixed_context_token_s * decode_context    if the step prefills
        + sequence_s * sequences

    where ``k`` is ``sharpness``. No coefficient is negative, so the duration never
    falls when a field of the shape grows. A step without tokens takes no time.

    With the same decodes from step to step it is a straight line in ``decode_context``.
    """

    base_s: NonNegativeFloat = 0.0
    """Fixed part of every step."""
    weights_s: NonNegativeFloat = 0.0
    """Time to read the weights once: what a small step costs."""
    token_s: NonNegativeFloat = 0.0
    """Time to compute one token in a large step, attention aside."""
    sharpness: Annotated[float, Field(ge=1)] = 1.0
    """How the two meet: 1 is their sum, and the larger it is the closer to their maximum."""
    attention_pair_s: NonNegativeFloat = 0.0
    """Per pair of tokens in the attention of prefills."""
    prefill_context_token_s: NonNegativeFloat = 0.0
    """Per cached token that prefills read."""
    decode_context_token_s: NonNegativeFloat = 0.0
    """Per cached token that decodes read."""
    mixed_context_token_s: NonNegativeFloat = 0.0
    """Per cached token that decodes read beside a prefill, on top of the price above."""
    sequence_s: NonNegativeFloat = 0.0
    """Per sequence: output layer and sampling."""

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if not self.base_s + self.weights_s > 0:
            raise ValueError("base_s and weights_s are both 0; a step has to take time")
        return self

    @override
    def __call__(self, shape: StepShape) -> float:
        prefill_tokens, attention, prefill_context, decodes, decode_context, sequences = shape
        tokens = prefill_tokens + decodes
        if tokens <= 0:
            return 0.0
        more_s, less_s = self.weights_s, self.token_s * tokens
        if more_s < less_s:
            more_s, less_s = less_s, more_s
        if less_s > 0.0:
            # The ratio keeps a sharp maximum from underflowing.
            k = self.sharpness
            more_s *= (1.0 + (less_s / more_s) ** k) ** (1.0 / k)
        context_token_s = self.decode_context_token_s
        if prefill_tokens:
            context_token_s += self.mixed_context_token_s
        return (
            self.base_s
            + more_s
            + self.attention_pair_s * attention
            + self.prefill_context_token_s * prefill_context
            + context_token_s * decode_context
            + self.sequence_s * sequences
        )

    @override
    def adjusted(self, scale: float, overhead_s: float) -> Self:
        # Every part but the sharpness is a time.
        changes = {name: value * scale for name, value in self if name != "sharpness"}
        return self.model_copy(update=changes | {"base_s": self.base_s * scale + overhead_s})
