"""Rows of foreign traces to workloads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.files import Faults


class Row(NamedTuple):
    """One row of a trace."""

    line: int
    time: str
    """As the file has it."""
    seconds: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as a workload, and what was left out."""

    workload: Workload
    dropped: int
    """Rows without output, such as failed calls: no engine can replay them."""


def trace_of(
    path: Path, rows: Iterable[Row], faults: Faults, *, time_column: str, block_tokens: int = 0
) -> Trace:
    """The rows in the order of the file, which must be that of time.

    Arrivals count from the first row. A trace says nothing of the ceilings that
    clients set, so all requests get the same one, which tells no policy their
    lengths: the least power of two that no output exceeds.

    Raises
    ------
    WorkloadError
        With the ``faults`` noted while the rows were read and those found here.
    """
    found, dropped = list[Row](), 0
    for row in rows:
        if found and row.seconds < found[-1].seconds:
            faults.add(
                row.line,
                f"{time_column} {row.time} is before that of line {found[-1].line}; "
                "sort the trace by time",
            )
        elif row.output_tokens == 0:
            dropped += 1
        else:
            found.append(row)
    faults.raise_any()
    if not found:
        left_out = f"; {dropped} rows have no output tokens" if dropped else ""
        raise WorkloadError(f"{path}: the trace has no requests{left_out}")
    ceiling = 1 << (max(row.output_tokens for row in found) - 1).bit_length()
    requests = (
        WorkloadRequest(
            id=f"line-{row.line}",
            arrival_s=round(row.seconds - found[0].seconds, 7),
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            max_tokens=ceiling,
            tenant=row.tenant,
            prefix_blocks=row.blocks,
            prefix_block_tokens=block_tokens if row.blocks else 0,
        )
        for row in found
    )
    return Trace(Workload(path.name, tuple(requests)), dropped)
