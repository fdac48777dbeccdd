"""Past-Future's distributions of lengths, and what was published of KV use and evictions."""

from __future__ import annotations

from dataclasses import dataclass

PRESS = "R. Gong et al., Past-Future Scheduler, ASPLOS 2025, artifact's simulator as run by us"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Uniform lengths of prompts and answers, and Past-Future's figures on them."""

    name: str
    prompt: tuple[int, int]
    output: tuple[int, int]
    max_tokens: int
    published: tuple[tuple[str, float, float], ...]
    """Way of admission, use and evicted part, each the middle of what was found."""


DISTRIBUTIONS = (
    Lengths(
        "D1: prompts 32-4096, answers 2048-4096",
        (32, 4096),
        (2048, 4096),
        4096,
        (
            ("aggressive", 0.985, 0.951),
            ("conservative", 0.578, 0.0),
            ("Past-Future", 0.9335, 0.0825),
            ("theoretical optimum", 0.947, 0.0),
        ),
    ),
    Lengths(
        "D2: prompts and answers 3000-5000",
        (3000, 5000),
        (3000, 5000),
        5120,
        (
            ("aggressive", 0.978, 0.986),
            ("conservative", 0.717, 0.0),
            ("Past-Future", 0.92, 0.073),
            ("theoretical optimum", 0.928, 0.0),
        ),
    ),
    Lengths(
        "D3: prompts 2048-4096, answers 32-4096",
        (2048, 4096),
        (32, 4096),
        4096,
        (
            ("aggressive", 0.981, 0.342),
            ("conservative", 0.595, 0.0),
            ("Past-Future", 0.9455, 0.03),
            ("theoretical optimum", 0.967, 0.0),
        ),
    ),
)
