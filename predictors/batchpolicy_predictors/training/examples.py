"""Requests with the answers that they got, as columns to train and to judge on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from batchpolicy.predictor import Arrivals
from batchpolicy.requests import BoolArray, FloatArray, IndexArray, IntArray

NO_CEILING = 2**20
"""Ceiling of requests that name none."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read."""

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class Examples:
    """Requests in the order of their file, or of their times."""

    name: str
    arrivals: Arrivals
    output_tokens: IntArray
    group: list[str]
    """Equal for rows of one prompt or session, which stay on one side of a split."""
    time_s: FloatArray | None
    sources: Sequence[Source]
    prompts: str
    """How prompts became tokens, for the card."""
    lengths: str
    """How lengths were counted, for the card."""
    left_out: int = 0
    """Rows without an answer."""

    def __len__(self) -> int:
        return len(self.output_tokens)

    def take(self, rows: IndexArray) -> Examples:
        """Some of them."""
        return replace(
            self,
            arrivals=self.arrivals.take(rows),
            output_tokens=self.output_tokens[rows],
            group=[self.group[i] for i in rows.tolist()],
            time_s=None if self.time_s is None else self.time_s[rows],
        )

    def has_history(self) -> bool:
        """Whether earlier answers tell anything: of tenants, or in order of time."""
        return self.time_s is not None or any(self.arrivals.tenant)

    def group_hashes(self) -> npt.NDArray[np.uint32]:
        """A number of each row's group; no way leads back to its text."""
        return np.array([group_hash(group) for group in self.group], dtype=np.uint32)


def group_hash(group: str) -> int:
    """The number that stands for a group in a model file."""
    return int.from_bytes(hashlib.sha256(f"group {group}".encode()).digest()[:4], "little")


def held_out_groups(examples: Examples, share: float, seed: int) -> BoolArray:
    """Rows to judge on, about ``share`` of them: whole groups, drawn by their hash."""
    drawn = {
        group: int.from_bytes(hashlib.sha256(f"{seed} {group}".encode()).digest()[:8], "big")
        for group in set(examples.group)
    }
    return np.array([drawn[group] < share * 2.0**64 for group in examples.group])


def held_out_end(examples: Examples, share: float) -> BoolArray:
    """Rows to judge on: the last ``share`` of the time."""
    n = len(examples)
    return np.arange(n) >= n - max(1, round(share * n))
