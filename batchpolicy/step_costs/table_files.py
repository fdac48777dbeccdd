"""Latency tables as files: CSV, plain or compressed with gzip, read strictly."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batchpolicy.errors import ConfigError
from batchpolicy.reading import unpacked


@dataclass(frozen=True, slots=True)
class TableRow:
    """One measurement: where it stands, what was measured, and the time of it."""

    line: int
    layer: str
    """Empty in a table without a column ``layer``."""
    sizes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class TableFile:
    """All rows of a file."""

    path: Path
    rows: tuple[TableRow, ...]
    sha256: str
    """Of the uncompressed file."""

    def fault(self, line: int, what: str) -> ConfigError:
        """The error for something wrong in a line."""
        return ConfigError(f"{self.path}:{line}: {what}")


def read_table(path: Path, sizes: Sequence[str], *, by_layer: bool) -> TableFile:
    """Rows with the columns ``sizes`` and ``time_us``, and ``layer`` if asked for.

    Raises
    ------
    ConfigError
        When the file cannot be read, lacks a column, holds no row, or a row holds something
        else than whole sizes and a time above 0, or repeats one; with file and line.
    """
    try:
        raw = unpacked(path)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise ConfigError(f"table {path} cannot be read: {reason}") from e
    table = TableFile(path, (), hashlib.sha256(raw).hexdigest())
    lines = csv.reader(io.StringIO(text), strict=True)
    wanted = [*(["layer"] if by_layer else []), *sizes, "time_us"]
    rows: list[TableRow] = []
    seen: dict[tuple[str, ...], int] = {}
    try:
        header = next(lines, list[str]())
        absent = [name for name in wanted if name not in header]
        if absent:
            raise table.fault(
                1, f"no column {', '.join(map(repr, absent))}; expected {', '.join(wanted)}"
            )
        places = [header.index(name) for name in wanted]
        for cells in lines:
            line = lines.line_num
            if not cells:
                continue
            if len(cells) != len(header):
                raise table.fault(line, f"{len(cells)} cells, expected {len(header)}")
            picked = [cells[place] for place in places]
            key = tuple(picked[:-1])
            if key in seen:
                raise table.fault(line, f"{', '.join(key)} stands in line {seen[key]} already")
            seen[key] = line
            layer = picked.pop(0) if by_layer else ""
            rows.append(
                TableRow(
                    line,
                    layer,
                    tuple(
                        _size(table, line, name, cell)
                        for name, cell in zip(sizes, picked, strict=False)
                    ),
                    _seconds(table, line, picked[-1]),
                )
            )
    except csv.Error as e:
        raise table.fault(lines.line_num, f"is no CSV: {e}") from e
    if not rows:
        raise ConfigError(f"table {path} holds no row")
    return TableFile(path, tuple(rows), table.sha256)


def _size(table: TableFile, line: int, name: str, cell: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise table.fault(line, f"{name} is {cell!r}, expected a whole number, at least 0")
    return int(cell)


def _seconds(table: TableFile, line: int, cell: str) -> float:
    try:
        micros = float(cell)
    except ValueError:
        micros = math.nan
    if not 0.0 < micros < math.inf:
        raise table.fault(line, f"time_us is {cell!r}, expected a time above 0")
    return micros * 1e-6
