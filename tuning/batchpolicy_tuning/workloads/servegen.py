"""Reader of traces with tenants, such as samples of ServeGen's clients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from batchpolicy_tuning.workloads.files import Faults, csv_rows, whole_number
from batchpolicy_tuning.workloads.trace import Row, Trace, trace_of

COLUMNS = ("arrival_s", "tenant", "input_tokens", "output_tokens")


def read_servegen(path: Path) -> Trace:
    """Requests of a CSV file with ``arrival_s, tenant, input_tokens, output_tokens``.

    The file may be gzipped. For arrivals and ceilings see ``trace_of``.

    Raises
    ------
    WorkloadError
        With what is wrong, up to ten lines of it.
    """
    faults = Faults(path)
    return trace_of(path, _rows(path, faults), faults, time_column=COLUMNS[0])


def _rows(path: Path, faults: Faults) -> Iterator[Row]:
    for line, (arrival, tenant, prompt, output) in csv_rows(path, COLUMNS):
        try:
            yield Row(
                line,
                arrival,
                _seconds(arrival),
                whole_number(COLUMNS[2], prompt, 1),
                whole_number(COLUMNS[3], output, 0),
                _tenant(tenant),
            )
        except ValueError as fault:
            faults.add(line, str(fault))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (0.0 <= seconds < math.inf):
        raise ValueError(f"arrival_s is {text!r}, expected seconds from the start")
    return seconds


def _tenant(text: str) -> str:
    if not text:
        raise ValueError("tenant is empty, expected a name")
    return text
