"""Grids of step latencies: CSV files with one engine step a row.

Their columns are ``system``, ``model``, ``tp``, ``backend``, ``backend_version``,
``kind``, ``prefill_tokens``, ``prefix_tokens``, ``decode_seqs``, ``context_tokens``
(of each decode) and ``latency_ms``; others are ignored.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchpolicy.errors import ConfigError
from batchpolicy.reading import unpacked
from batchpolicy.step_cost import StepShape

Floats = npt.NDArray[np.float64]

KINDS = ("prefill", "decode", "mixed")
COLUMNS = (
    "system",
    "model",
    "tp",
    "backend",
    "backend_version",
    "kind",
    "prefill_tokens",
    "prefix_tokens",
    "decode_seqs",
    "context_tokens",
    "latency_ms",
)
DATA = {
    "aiconfigurator_step_grid": (
        "step grid computed with aiconfigurator-core 0.12.0 (NVIDIA, ai-dynamo/aiconfigurator), "
        "which interpolates measured kernels",
        "Apache-2.0",
    )
}


class Row(NamedTuple):
    """One step of the grid."""

    kind: str
    prefill_tokens: int
    prefix_tokens: int
    decodes: int
    context_tokens: int
    latency_s: float

    @property
    def size(self) -> tuple[int, int]:
        """Prefill tokens and decodes: rows of one size differ in contexts only."""
        return self.prefill_tokens, self.decodes

    @property
    def shape(self) -> StepShape:
        """The step as a cost sees it.

        A mixed row stands for prompts of ``context_tokens`` each, whole where they
        fit into ``prefill_tokens`` and else the mean chunk of one. Its attention is
        that of ``prefill_tokens`` tokens at the mean depth of such a prompt: this is
        how aiconfigurator computes mixed steps, and 8,192 tokens beside 8 decodes at
        512 are therefore faster than one prompt of 8,192 tokens alone.
        """
        new = self.prefill_tokens
        if self.kind == "mixed":
            prompts = max(1, new // self.context_tokens)
            attention = new * self.context_tokens / 2
            prefill_context = max(0, self.context_tokens - new) // 2
        else:
            prompts = min(1, new)
            attention = new * (self.prefix_tokens + new / 2)
            prefill_context = self.prefix_tokens
        return StepShape(
            prefill_tokens=new,
            attention=attention,
            prefill_context=prefill_context,
            decodes=self.decodes,
            decode_context=self.decodes * self.context_tokens,
            sequences=prompts + self.decodes,
        )


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows of one combination, and where they come from."""

    rows: tuple[Row, ...]
    engine: str
    data: str
    licence: str
    sha256: str


def read_grid(path: Path, system: str, model: str, tp: int, backend: str) -> Grid:
    """Rows of one combination of a grid file, plain or compressed with gzip.

    Raises
    ------
    ConfigError
        When the file cannot be read, lacks a column, or has no such combination.
    """
    try:
        raw = unpacked(path)
        table = csv.DictReader(io.StringIO(raw.decode()))
        lines = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise ConfigError(f"grid {path} cannot be read: {e}") from e
    absent = [name for name in COLUMNS if lines and name not in (table.fieldnames or ())]
    if absent:
        raise ConfigError(f"grid {path} has no column {', '.join(map(repr, absent))}")
    asked = {"system": system, "model": model, "tp": str(tp), "backend": backend}
    try:
        found = [line for line in lines if all(line[k] == v for k, v in asked.items())]
        rows = tuple(
            Row(
                line["kind"],
                int(line["prefill_tokens"] or 0),
                int(line["prefix_tokens"] or 0),
                int(line["decode_seqs"] or 0),
                int(line["context_tokens"] or 0),
                float(line["latency_ms"]) / 1000.0,
            )
            for line in found
        )
    except (TypeError, ValueError) as e:
        raise ConfigError(f"grid {path} has a cell that is no number: {e}") from e
    for row in rows:
        if not 0 < row.latency_s < math.inf or (row.kind == "mixed" and row.context_tokens < 1):
            raise ConfigError(f"grid {path} has a row that is no step: {row}")
    missing = [kind for kind in KINDS if all(row.kind != kind for row in rows)]
    if missing:
        known = sorted({tuple(line[k] for k in asked) for line in lines})
        near = difflib.get_close_matches(
            " ".join(asked.values()), [" ".join(k) for k in known], n=3, cutoff=0.0
        )
        raise ConfigError(
            f"grid {path} has no {' and no '.join(missing)} rows for {' '.join(asked.values())}. "
            f"Nearest: {'; '.join(near) or 'none, the file is empty'}"
        )
    data, licence = DATA.get(path.name.split(".")[0], (path.name, "not stated"))
    return Grid(
        rows,
        f"{backend} {found[0]['backend_version']}",
        data,
        licence,
        hashlib.sha256(raw).hexdigest(),
    )


def monotone(rows: Sequence[Row]) -> Floats:
    """Latencies that never fall when a size grows within a kind, shape ``(n,)``.

    The mean of the running maximum (over all smaller steps) and the running
    minimum (over all larger ones): both are monotone, one too high and one too low.
    """
    latency_s = np.array([row.latency_s for row in rows])
    sizes = np.array([row[1:5] for row in rows])
    kinds = np.array([row.kind for row in rows])
    highest_s, lowest_s = latency_s.copy(), latency_s.copy()
    for i in range(len(rows)):
        same = kinds == kinds[i]
        highest_s[i] = latency_s[same & (sizes <= sizes[i]).all(axis=1)].max()
        lowest_s[i] = latency_s[same & (sizes >= sizes[i]).all(axis=1)].min()
    middle_s: Floats = (highest_s + lowest_s) / 2
    return middle_s
