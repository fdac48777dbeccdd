"""Distributions of lengths, in tokens."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from batchpolicy.component import Component
from batchpolicy.errors import WorkloadError
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_tuning.workloads import draws
from batchpolicy_tuning.workloads.files import Faults, csv_rows, whole_number


class Constant(Component):
    """Always the same length; in a file the bare number says so too."""

    dist: Literal["constant"] = "constant"
    tokens: PositiveInt

    def draw(self, rng: np.random.Generator, n: int) -> IntArray:
        """``n`` lengths."""
        return np.full(n, self.tokens, dtype=np.int64)


class _Bounded(Component):
    low: PositiveInt
    """No length is below it."""
    high: PositiveInt
    """No length is above it."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high {self.high} is below low {self.low}")
        return self


class Uniform(_Bounded):
    """Every whole number from ``low`` to ``high`` as often as any other."""

    dist: Literal["uniform"] = "uniform"

    def draw(self, rng: np.random.Generator, n: int) -> IntArray:
        """``n`` lengths."""
        return rng.integers(self.low, self.high, size=n, endpoint=True)


class Lognormal(_Bounded):
    """Lognormal; what falls outside ``low`` and ``high`` is moved to them."""

    dist: Literal["lognormal"] = "lognormal"
    median: PositiveFloat
    """Half of the lengths are below it."""
    sigma: NonNegativeFloat
    """Standard deviation of the logarithm."""

    def draw(self, rng: np.random.Generator, n: int) -> IntArray:
        """``n`` lengths."""
        return draws.lengths(
            rng, n, median=self.median, sigma=self.sigma, low=self.low, high=self.high
        )


class Sample(Component):
    """Lengths in a column of a CSV file, plain or gzipped, drawn with replacement.

    Prompt and output of a stream that name the same file are drawn from the same row,
    so that their correlation stays.
    """

    dist: Literal["sample"] = "sample"
    file: Annotated[str, Field(min_length=1)]
    """Its path, from the folder of the workload file."""
    column: Annotated[str, Field(min_length=1)]
    """Name of the column; its numbers are at least 1."""

    def values(self, base: Path) -> IntArray:
        """All lengths in the file, whose path starts from ``base``.

        Raises
        ------
        WorkloadError
            When the file cannot be read, or holds what is no length: up to ten lines.
        """
        return _column(base / self.file, self.column)


def dist(given: Any) -> Any:
    """Which distribution a mapping, or one that is made, is."""
    if isinstance(given, dict):
        return cast("dict[str, Any]", given).get("dist")
    return getattr(given, "dist", None)


def _read_number(given: Any) -> Any:
    whole = isinstance(given, int) and not isinstance(given, bool)
    return {"dist": "constant", "tokens": given} if whole else given


Lengths = Constant | Uniform | Lognormal | Sample
AnyLengths = Annotated[
    Annotated[Constant, Tag("constant")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[Lognormal, Tag("lognormal")]
    | Annotated[Sample, Tag("sample")],
    Discriminator(dist),
    BeforeValidator(_read_number),
]
"""What files and Python may give for a distribution: a bare number is a constant."""


def draw_pair(
    prompt: Lengths, output: Lengths, rng: np.random.Generator, n: int, base: Path
) -> tuple[IntArray, IntArray]:
    """``n`` lengths of prompts and of outputs.

    Raises
    ------
    WorkloadError
        See ``Sample.values``.
    """
    at: FloatArray = rng.random(n)
    same = isinstance(prompt, Sample) and isinstance(output, Sample) and prompt.file == output.file
    again: FloatArray = at if same else rng.random(n)
    return _draw(prompt, rng, at, base), _draw(output, rng, again, base)


def _draw(lengths: Lengths, rng: np.random.Generator, at: FloatArray, base: Path) -> IntArray:
    if isinstance(lengths, Sample):
        values = lengths.values(base)
        return values[(at * len(values)).astype(np.int64)]
    return lengths.draw(rng, len(at))


@functools.lru_cache(maxsize=16)
def _column(path: Path, name: str) -> IntArray:
    faults, found = Faults(path), list[int]()
    for line, (cell,) in csv_rows(path, [name]):
        try:
            found.append(whole_number(name, cell, 1))
        except ValueError as fault:
            faults.add(line, str(fault))
    faults.raise_any()
    if not found:
        raise WorkloadError(f"{path}: the file has no rows")
    made = np.array(found, dtype=np.int64)
    made.setflags(write=False)
    return made
