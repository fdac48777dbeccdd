"""What commands print, and the status that they end with."""

from __future__ import annotations

import json
import os
from typing import Annotated, cast

import typer
from rich.console import Console

FAULT, USAGE = 1, 2
GATE_FAILED, INVALID = 4, 5
INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def emit_json(value: object) -> None:
    """Print a value as JSON; what JSON has no word for becomes text, such as ``"inf"``."""
    print(json.dumps(_finite(value), indent=2, default=str))


def console() -> Console:
    """Where tables go: plain when ``NO_COLOR`` is set or nobody looks at the terminal.

    Files and pipes, which have no width, get 120 columns.
    """
    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 120
    return made


def _finite(value: object) -> object:
    if isinstance(value, float) and value - value != 0.0:
        return str(value)
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in cast("list[object]", value)]
    return value
