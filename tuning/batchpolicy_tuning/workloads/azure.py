"""Reader of the Azure LLM inference traces."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload, WorkloadRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SHOWN_FAULTS = 10
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


class _Row(NamedTuple):
    line: int
    seconds: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class AzureTrace:
    """A trace as a workload, and what was left out."""

    workload: Workload
    dropped: int
    """Rows without output, such as failed calls: no engine can replay them."""


def read_azure(path: Path) -> AzureTrace:
    """Requests of a CSV file with the columns ``TIMESTAMP, ContextTokens, GeneratedTokens``.

    The file may be gzipped; fractions of a second may have any number of digits.
    Arrivals count from the first row. A trace says nothing of the ceilings that
    clients set, so all requests get the same one, which tells no policy their
    lengths: the least power of two that no output exceeds.

    Raises
    ------
    WorkloadError
        When the file cannot be read, lacks a column, has no usable row, or has
        rows that are garbled or out of order: up to ten of them, with their lines.
    """
    found, faults, dropped = list[_Row](), list[str](), 0
    for line, cells in _lines(path):
        try:
            row = _Row(line, _seconds(cells[0]), _count(cells, 1), _count(cells, 2))
        except ValueError as fault:
            faults.append(f"{path}:{line}: {fault}")
            continue
        if row.prompt_tokens < 1:
            faults.append(
                f"{path}:{line}: {COLUMNS[1]} is {row.prompt_tokens}, expected at least 1"
            )
        elif found and row.seconds < found[-1].seconds:
            faults.append(
                f"{path}:{line}: TIMESTAMP {cells[0].strip()} is before that of line "
                f"{found[-1].line}; sort the trace by time"
            )
        elif row.output_tokens == 0:
            dropped += 1
        else:
            found.append(row)
    if faults:
        raise WorkloadError(_listed(faults))
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
        )
        for row in found
    )
    return AzureTrace(Workload(path.name, tuple(requests)), dropped)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and the three cells of each row."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = [cell.strip() for cell in next(rows, list[str]())]
            if not header:
                raise WorkloadError(f"{path}: the file is empty; expected a header, {_expected()}")
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                raise WorkloadError(
                    f"{path}:1: no column {' and '.join(missing)}; "
                    f"found {', '.join(header)}, expected {_expected()}"
                )
            at = [header.index(name) for name in COLUMNS]
            for cells in rows:
                if any(cell.strip() for cell in cells):
                    yield rows.line_num, [cells[i] if i < len(cells) else "" for i in at]
    except FileNotFoundError as fault:
        raise WorkloadError(f"{path}: no such file") from fault
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as fault:
        raise WorkloadError(f"{path}: cannot be read as CSV: {fault}") from fault


def _seconds(text: str) -> float:
    matched = _TIMESTAMP.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"TIMESTAMP {text!r} is no time; expected 2023-11-16 18:15:46.6805900")
    whole, fraction, zone = matched.groups()
    try:
        moment = datetime.fromisoformat(f"{whole}{zone or '+00:00'}")
    except ValueError as fault:
        raise ValueError(f"TIMESTAMP {text!r} is no time: {fault}") from fault
    return moment.timestamp() + float(fraction or 0)


def _count(cells: list[str], column: int) -> int:
    text = cells[column].strip()
    if re.fullmatch(r"-?\d+", text) is None:
        raise ValueError(f"{COLUMNS[column]} is {text!r}, expected a whole number")
    number = int(text)
    if number < 0:
        raise ValueError(f"{COLUMNS[column]} is {number}, expected 0 or more")
    return number


def _expected() -> str:
    return ",".join(COLUMNS)


def _listed(faults: list[str]) -> str:
    more = len(faults) - SHOWN_FAULTS
    return "\n".join(faults[:SHOWN_FAULTS] + ([f"... and {more} more"] if more > 0 else []))
