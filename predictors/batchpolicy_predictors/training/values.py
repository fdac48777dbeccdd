"""What stands in a row of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast


def at(row: object, path: str) -> Any:
    """What stands at a dotted path, numbers being places in lists; None for nothing."""
    here: Any = row
    for part in path.split(".") if path else ():
        if isinstance(here, dict):
            here = cast("dict[str, Any]", here).get(part)
        elif (
            isinstance(here, list)
            and part.isdecimal()
            and int(part) < len(cast("Sequence[Any]", here))
        ):
            here = cast("Sequence[Any]", here)[int(part)]
        else:
            return None
    return here if path else None


def number(value: object) -> float | None:
    """A number, as JSON has it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 else None


def whole(value: object) -> int | None:
    """A whole number from 0 on; None for anything else."""
    found = number(value)
    return int(found) if found is not None and found >= 0 and found == int(found) else None


def short(value: object) -> str:
    """A value as messages show it."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
