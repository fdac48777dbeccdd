"""Lines and rows of trace files, plain or gzipped, and what is wrong with them."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

from batchpolicy.document import short
from batchpolicy.errors import WorkloadError
from batchpolicy.reading import refuse_device

SHOWN_FAULTS = 10


class Faults:
    """Faults of a file with their lines; the first ten are kept, the others counted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown: list[str] = []
        self._count = 0

    def add(self, line: int, text: str) -> None:
        """Note a fault."""
        self._count += 1
        if self._count <= SHOWN_FAULTS:
            self._shown.append(f"{self._path}:{line}: {text}")

    def raise_any(self) -> None:
        """Raise one WorkloadError for all of them, if there are any."""
        more = self._count - SHOWN_FAULTS
        if self._count:
            listed = self._shown + ([f"... and {more} more"] if more > 0 else [])
            raise WorkloadError("\n".join(listed))


@contextmanager
def opened(path: Path, kind: str) -> Generator[TextIO, None, None]:
    """The text of a file; what cannot be read is a WorkloadError that names the ``kind``."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        refuse_device(path)
        with cast(TextIO, opener(path, "rt", encoding="utf-8-sig", newline="")) as file:
            yield file
    except FileNotFoundError as fault:
        raise WorkloadError(f"{path}: no such file") from fault
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as fault:
        raise WorkloadError(f"{path}: cannot be read as {kind}: {fault}") from fault


def csv_header(path: Path) -> list[str]:
    """Names of the columns; none where the file is empty."""
    with opened(path, "CSV") as file:
        return [cell.strip() for cell in next(csv.reader(file), list[str]())]


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Line and the cells of these columns of each row that is not blank; read as it is asked for.

    Raises
    ------
    WorkloadError
        When the file cannot be read or lacks a column.
    """
    expected = ",".join(columns)
    with opened(path, "CSV") as file:
        rows = csv.reader(file)
        header = [cell.strip() for cell in next(rows, list[str]())]
        if not header:
            raise WorkloadError(f"{path}: the file is empty; expected a header, {expected}")
        missing = [name for name in columns if name not in header]
        if missing:
            raise WorkloadError(
                f"{path}:1: no column {' and '.join(missing)}; "
                f"found {', '.join(header)}, expected {expected}"
            )
        at = [header.index(name) for name in columns]
        for cells in rows:
            if any(cell.strip() for cell in cells):
                yield rows.line_num, [cells[i].strip() if i < len(cells) else "" for i in at]


def json_rows(path: Path, faults: Faults) -> Iterator[tuple[int, dict[str, object]]]:
    """Line and value of each JSON object, one a line; read as it is asked for.

    Lines that are no object, or set a key twice, are noted in ``faults`` and left out.
    """
    with opened(path, "JSON lines") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                value = json.loads(text, object_pairs_hook=_unique)
            except json.JSONDecodeError as fault:
                faults.add(line, f"not JSON: {fault.msg} at column {fault.colno}.")
            except (ValueError, RecursionError) as fault:
                faults.add(line, f"{fault}.")
            else:
                if isinstance(value, dict):
                    yield line, cast("dict[str, object]", value)
                else:
                    faults.add(line, f"the line is {short(value)}; expected an object.")


def whole_number(name: str, text: str, least: int) -> int:
    """The number in a cell.

    Raises
    ------
    ValueError
        When it is none, or below ``least``.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{name} is {text!r}, expected a whole number")
    number = int(text)
    if number < least:
        expected = f"at least {least}" if least else "0 or more"
        raise ValueError(f"{name} is {number}, expected {expected}")
    return number


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is set twice")
    return made
