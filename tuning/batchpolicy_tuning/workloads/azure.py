"""Reader of the Azure LLM inference traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from batchpolicy_tuning.workloads.files import Faults, csv_rows, whole_number
from batchpolicy_tuning.workloads.trace import Row, Trace, trace_of

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


def read_azure(path: Path) -> Trace:
    """Requests of a CSV file with the columns ``TIMESTAMP, ContextTokens, GeneratedTokens``.

    The file may be gzipped; fractions of a second may have any number of digits.
    For arrivals and ceilings see ``trace_of``.

    Raises
    ------
    WorkloadError
        When the file cannot be read, lacks a column, has no usable row, or has
        rows that are garbled or out of order: up to ten of them, with their lines.
    """
    faults = Faults(path)
    return trace_of(path, _rows(path, faults), faults, time_column=COLUMNS[0])


def _rows(path: Path, faults: Faults) -> Iterator[Row]:
    for line, (time, prompt, output) in csv_rows(path, COLUMNS):
        try:
            yield Row(
                line,
                time,
                _seconds(time),
                whole_number(COLUMNS[1], prompt, 1),
                whole_number(COLUMNS[2], output, 0),
            )
        except ValueError as fault:
            faults.add(line, str(fault))


def _seconds(text: str) -> float:
    matched = _TIMESTAMP.fullmatch(text)
    if matched is None:
        raise ValueError(f"TIMESTAMP {text!r} is no time; expected 2023-11-16 18:15:46.6805900")
    whole, fraction, zone = matched.groups()
    try:
        moment = datetime.fromisoformat(f"{whole}{zone or '+00:00'}")
    except ValueError as fault:
        raise ValueError(f"TIMESTAMP {text!r} is no time: {fault}") from fault
    return moment.timestamp() + float(fraction or 0)
