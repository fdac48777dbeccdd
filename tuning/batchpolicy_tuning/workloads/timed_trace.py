"""Reader of timed traces: Mooncake's, and what vLLM's benchmark calls ``timed_trace``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from batchpolicy.document import faults_of
from batchpolicy_tuning.workloads.files import Faults, json_rows
from batchpolicy_tuning.workloads.trace import Row, Trace, trace_of

BLOCK_TOKENS = (512, 16)
"""Tokens for each of the ``hash_ids``: in Mooncake's traces; in others, and vLLM's default."""


class TimedRow(BaseModel):
    """A line; other keys are left alone."""

    model_config = ConfigDict(strict=True)

    timestamp: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    input_length: PositiveInt
    output_length: NonNegativeInt
    hash_ids: list[int] = Field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class TimedTrace:
    """A trace, and how its numbers were read."""

    trace: Trace
    whole_ms: bool
    """Timestamps are whole milliseconds; else they are seconds."""
    block_tokens: int
    """Tokens for each hash id; 0 where there are none."""


def read_timed_trace(path: Path) -> TimedTrace:
    """Requests of JSON lines with ``timestamp, input_length, output_length, hash_ids``.

    The file may be gzipped; ``hash_ids`` may be missing. The format states neither
    its unit of time nor the size of its blocks:

    * timestamps that are all whole numbers, as in Mooncake's traces, are
      milliseconds; with fractions they are seconds, vLLM's default;
    * the size is the one of ``BLOCK_TOKENS`` that fits the number of ids of every
      prompt, with or without one for a last block that the prompt cuts short.

    Raises
    ------
    WorkloadError
        With what is wrong, up to ten lines of it.
    """
    faults = Faults(path)
    rows = list(_rows(path, faults))
    whole_ms = all(row.seconds.is_integer() for row in rows)
    if whole_ms:
        rows = [row._replace(seconds=row.seconds / 1000) for row in rows]
    size = _block_tokens(rows, faults) if any(row.blocks for row in rows) else 0
    trace = trace_of(path, rows, faults, time_column="timestamp", block_tokens=size)
    return TimedTrace(trace, whole_ms, size)


def _rows(path: Path, faults: Faults) -> Iterator[Row]:
    for line, found in json_rows(path, faults):
        try:
            row = TimedRow.model_validate(found)
        except ValidationError as e:
            for _, text in faults_of(e, TimedRow, found):
                faults.add(line, text)
            continue
        yield Row(
            line,
            f"{row.timestamp:g}",
            row.timestamp,
            row.input_length,
            row.output_length,
            blocks=tuple(row.hash_ids),
        )


def _block_tokens(rows: Sequence[Row], faults: Faults) -> int:
    misfits: list[Row] = []
    for size in BLOCK_TOKENS:
        misfit = next((row for row in rows if row.blocks and not _fits(row, size)), None)
        if misfit is None:
            return size
        misfits.append(misfit)
    row = max(misfits, key=lambda row: row.line)
    faults.add(
        row.line,
        f"{len(row.blocks)} hash_ids for {row.prompt_tokens} tokens; expected one for each "
        f"{' or '.join(map(str, BLOCK_TOKENS))} of them, the same in all lines.",
    )
    return BLOCK_TOKENS[0]


def _fits(row: Row, size: int) -> bool:
    return row.prompt_tokens // size <= len(row.blocks) <= -(-row.prompt_tokens // size)
