"""How long a step takes on some hardware."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


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


class StepCost(ABC):
    """Seconds that a step of some shape takes."""

    @abstractmethod
    def __call__(self, shape: StepShape) -> float:
        """Duration of the step in seconds; 0 for an empty one."""
