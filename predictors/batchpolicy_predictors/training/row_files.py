"""Files of rows: JSON lines, one JSON list, or CSV, plain or compressed."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from batchpolicy.errors import WorkloadError
from batchpolicy.reading import refuse_device
from batchpolicy_predictors.training.examples import Source
from batchpolicy_predictors.training.values import short

SHOWN_FAULTS = 10


class Faults:
    """What is wrong with files; the first ten are kept, the others counted."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._count = 0

    def add(self, place: str, text: str) -> None:
        """Something is wrong there."""
        self._count += 1
        if self._count <= SHOWN_FAULTS:
            self._shown.append(f"{place}: {text}")

    def raise_any(self) -> None:
        """Raise a WorkloadError with all of it, if anything is wrong."""
        more = self._count - SHOWN_FAULTS
        if self._count:
            raise WorkloadError(
                "\n".join(self._shown + ([f"... and {more} more"] if more > 0 else []))
            )


def rows_of(path: Path, faults: Faults) -> tuple[list[tuple[str, dict[str, Any]]], Source]:
    """Place and value of each row of a file of JSON lines, of one JSON list, or of CSV."""
    try:
        refuse_device(path)
        raw = path.read_bytes()
        data = gzip.decompress(raw) if path.suffix == ".gz" else raw
        text = data.decode("utf-8-sig")
    except FileNotFoundError as e:
        raise WorkloadError(f"{path}: no such file") from e
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise WorkloadError(
            f"{path}:{line}: byte 0x{e.object[e.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from e
    except (OSError, EOFError, zlib.error) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise WorkloadError(f"{path}: cannot be read: {reason}") from e
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "csv":
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows = [
            (f"{path}:{reader.line_num}", {str(k): _cell(v) for k, v in row.items()})
            for row in reader
        ]
    elif text.lstrip().startswith("["):
        rows = list(_items(path, text, faults))
    else:
        rows = list(_lines(path, text, faults))
    return rows, Source(path.name, hashlib.sha256(raw).hexdigest(), len(rows))


def _items(path: Path, text: str, faults: Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        found: list[Any] = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise WorkloadError(f"{path}: no JSON: {e}") from e
    for number, value in enumerate(found, start=1):
        if isinstance(value, dict):
            yield f"{path}: item {number}", cast("dict[str, Any]", value)
        else:
            faults.add(f"{path}: item {number}", f"is {short(value)}, expected an object")


def _lines(path: Path, text: str, faults: Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError) as e:
            faults.add(f"{path}:{number}", f"no JSON: {e}")
            continue
        if isinstance(value, dict):
            yield f"{path}:{number}", cast("dict[str, Any]", value)
        else:
            faults.add(f"{path}:{number}", f"is {short(value)}, expected an object")


def _cell(text: object) -> object:
    """The number that a cell of CSV holds, else its text."""
    for kind in (int, float):
        try:
            return kind(str(text))
        except ValueError:
            continue
    return text
