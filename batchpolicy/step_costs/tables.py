"""Step cost from measured layers, in the layout of LLMServingSim's latency tables."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    NonNegativeFloat,
    PositiveInt,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)
from typing_extensions import override

from batchpolicy.errors import ConfigError
from batchpolicy.nearest import near
from batchpolicy.step_cost import OutsideCost, StepShape
from batchpolicy.step_costs.grid import ATTENTION, Floats, continued, full_grid
from batchpolicy.step_costs.table_files import TableFile, read_table

PER_LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "qk_norm": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
"""Parts of a decoder layer, and how often it has each."""
PER_STEP = {"embedding": 1, "final_layernorm": 1}
PER_SEQUENCE = {"lm_head": 1, "sampler": 1}
MAY_LACK = {"qk_norm"}
"""Parts that some models do not have."""


def in_folder(given: Any, info: ValidationInfo) -> Any:
    """A path as an absolute one, relative to the folder of the file that names it."""
    if not isinstance(given, str) or not given:
        return given
    context: Any = info.context or {}
    return str(Path(context.get("folder") or Path.cwd()) / Path(given).expanduser())


FilePath = Annotated[str, BeforeValidator(in_folder)]


class Extent(NamedTuple):
    """The largest steps that tables hold."""

    tokens: int
    decodes: int
    prefill_context_tokens: int
    decode_context_tokens: int


class TableCost(OutsideCost):
    """Interpolation in three tables: attention of a layer, its other parts, output layer.

    The layout is that of LLMServingSim's profiles, a CSV each, times in microseconds:

    - ``attention``: ``prefill_chunk, kv_prefill, n_decode, kv_decode, time_us`` of one layer:
      new prompt tokens of the step, tokens already cached for them, decodes, their mean context;
    - ``dense``: ``layer, tokens, time_us``, where ``layer`` is a part of a decoder layer, or
      ``embedding`` or ``final_layernorm``, which run once a step;
    - ``per_sequence``: ``layer, sequences, time_us`` of ``lm_head`` and ``sampler``.

    Measurements fall here and there where they should rise. Each table is replaced by the mean
    of its running maximum and its running minimum, so that a step is never shorter for more
    prompt tokens, more decodes of the same mean context, or longer contexts.

    Tokens and sequences end with the tables: a larger step is refused. Contexts are continued
    by the slope of the last two.
    """

    attention: FilePath
    dense: FilePath
    per_sequence: FilePath
    layers: PositiveInt
    """Decoder layers of the model."""
    layer_s: NonNegativeFloat = 0.0
    """Of each layer, on top: under tensor parallelism, the latency of its two all-reduces."""
    layer_token_s: NonNegativeFloat = 0.0
    """Of each layer and token, on top: the bytes of both all-reduces over the bandwidth."""
    sha256: str = ""
    """Of the three files together; where it is given, other files are refused."""

    _extent: Extent = PrivateAttr()
    _digest: str = PrivateAttr()
    _token_s: list[float] = PrivateAttr()
    """By tokens of the step: all that is not attention and not per sequence."""
    _sequence_s: list[float] = PrivateAttr()
    _axes: tuple[list[int], ...] = PrivateAttr()
    _cells: list[float] = PrivateAttr()
    _strides: tuple[int, ...] = PrivateAttr()
    _unused: int = PrivateAttr()

    @model_validator(mode="after")
    def _read(self) -> Self:
        attention = read_table(Path(self.attention), ATTENTION, by_layer=False)
        dense = read_table(Path(self.dense), ("tokens",), by_layer=True)
        sequences = read_table(Path(self.per_sequence), ("sequences",), by_layer=True)
        files = (attention, dense, sequences)
        self._digest = hashlib.sha256("".join(f.sha256 for f in files).encode()).hexdigest()
        if self.sha256 and self.sha256 != self._digest:
            raise ConfigError(
                f"tables {', '.join(str(f.path) for f in files)} have the digest {self._digest}, "
                f"expected {self.sha256}: they are not those that the profile was made with"
            )
        parts = {name: times * self.layers for name, times in PER_LAYER.items()} | PER_STEP
        token_s = _summed(dense, parts)
        counts = np.arange(len(token_s))
        token_s += self.layers * (self.layer_s + self.layer_token_s * counts)
        token_s[0] = 0.0
        self._token_s = token_s.tolist()
        self._sequence_s = _summed(sequences, PER_SEQUENCE).tolist()
        axes, cells, unused = full_grid(attention)
        self._extent = Extent(
            tokens=min(len(self._token_s) - 1, axes[0][-1]),
            decodes=min(len(self._sequence_s) - 1, axes[2][-1]),
            prefill_context_tokens=axes[1][-1],
            decode_context_tokens=axes[3][-1],
        )
        axes, cells = continued(axes, monotone(cells) * self.layers)
        self._axes, self._cells = axes, cells.ravel().tolist()
        self._strides = tuple(step // cells.itemsize for step in cells.strides)
        self._unused = unused
        return self

    @property
    def extent(self) -> Extent:
        """Where the tables end."""
        return self._extent

    @property
    def digest(self) -> str:
        """SHA-256 of the three files together, for ``sha256``."""
        return self._digest

    @property
    def unused(self) -> int:
        """Rows of the attention table that belong to another grid than the one used."""
        return self._unused

    @property
    def attention_axes(self) -> tuple[list[int], ...]:
        """Sizes measured of chunk, its context, decodes and their context."""
        chunk, context, decodes, decode_context = self._axes
        return chunk, context[:-1], decodes, decode_context[:-1]

    @override
    def plain(self, shape: StepShape) -> float:
        prefill_tokens, _, prefill_context, decodes, decode_context, sequences = shape
        tokens = prefill_tokens + decodes
        if tokens <= 0:
            return 0.0
        if tokens > self._extent.tokens or max(sequences, decodes) > self._extent.decodes:
            raise ConfigError(
                f"the tables end at {self._extent.tokens:,} tokens and {self._extent.decodes:,} "
                f"sequences of a step; this one has {tokens:,} and {sequences:,}. Lower "
                "max_num_batched_tokens or max_num_seqs; tables are not extrapolated."
            )
        mean_context = decode_context / decodes if decodes else 0.0
        return (
            self._token_s[tokens]
            + self._sequence_s[sequences]
            + self._attention_s(prefill_tokens, prefill_context, decodes, mean_context)
        )

    def _attention_s(self, *sizes: float) -> float:
        """Multilinear between the corners of the cell that the sizes lie in."""
        corners = [(0, 1.0)]
        for axis, stride, size in zip(self._axes, self._strides, sizes, strict=True):
            i = min(bisect_right(axis, size), len(axis) - 1) - 1
            if i < 0:  # below the first size measured: as if it were that
                continue
            part = (size - axis[i]) / (axis[i + 1] - axis[i])
            low, high = i * stride, (i + 1) * stride
            if part == 0.0:
                corners = [(at + low, w) for at, w in corners]
            elif part == 1.0:
                corners = [(at + high, w) for at, w in corners]
            else:
                corners = [
                    corner
                    for at, w in corners
                    for corner in ((at + low, w * (1.0 - part)), (at + high, w * part))
                ]
        cells = self._cells
        return sum(w * cells[at] for at, w in corners)


def monotone(cells: Floats) -> Floats:
    """Cells that never fall along any axis: the mean of running maximum and running minimum.

    The maximum over all smaller sizes is too high and the minimum over all larger ones too
    low; both rise everywhere, and so does their mean.
    """
    highest, lowest = cells, cells
    for axis in range(cells.ndim):
        highest = np.maximum.accumulate(highest, axis=axis)
        lowest = np.flip(np.minimum.accumulate(np.flip(lowest, axis), axis=axis), axis)
    middle: Floats = (highest + lowest) / 2
    return middle


def _summed(table: TableFile, parts: dict[str, int]) -> Floats:
    """Seconds of all parts together, by size from 0, monotone; shape ``(largest + 1,)``."""
    points: dict[str, dict[int, float]] = {}
    for row in table.rows:
        if row.layer not in parts:
            raise table.fault(
                row.line,
                f"no layer is known by the name {row.layer!r}.{near(row.layer, parts)} "
                f"Known: {', '.join(parts)}",
            )
        if row.sizes[0] < 1:
            raise table.fault(row.line, "the size is 0, expected at least 1")
        points.setdefault(row.layer, {})[row.sizes[0]] = row.seconds
    lacking = [name for name in parts if name not in points and name not in MAY_LACK]
    if lacking:
        raise ConfigError(
            f"table {table.path} has no rows for {', '.join(lacking)}; expected all layers. "
            "What tensor parallelism leaves alone may stand in the table of one GPU: copy it."
        )
    largest = min(max(of) for of in points.values())
    sizes = np.arange(1, largest + 1)
    total = np.zeros(largest + 1)
    for name, of in points.items():
        known = sorted(of)
        total[1:] += parts[name] * np.interp(sizes, known, [of[size] for size in known])
    return monotone(total)
