"""The value of a JSON file, and the line of each part of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from batchpolicy.document import Document, Loc
from batchpolicy.errors import ConfigError
from batchpolicy.nearest import near
from batchpolicy.reading import refuse_device

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def read_json(path: Path) -> Document:
    """The value in a JSON file, with its lines; keys that are set twice are faults.

    Raises
    ------
    ConfigError
        When there is no such file, or it is not JSON.
    """
    try:
        refuse_device(path)
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as e:
        beside = path.parent.glob("*.json") if path.parent.is_dir() else ()
        raise ConfigError(
            f"no file {str(path)!r}.{near(path.name, [p.name for p in beside])}"
        ) from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: byte 0x{e.object[e.start]:02x} is not UTF-8.") from e
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}.") from e
    try:
        value = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as e:
        raise ConfigError(f"{path}:{e.lineno}: not JSON: {e.msg} at column {e.colno}.") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: not JSON: {e}.") from e
    document = Document(path, value)
    _note_lines(text, document)
    return document


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is no number")


def _note_lines(text: str, document: Document) -> None:
    """Lines of all values in ``text``, which is known to be JSON."""
    lines = document.lines
    # Of each open list or mapping: its place, and the key or position that comes next.
    above: list[tuple[Loc, str | int]] = []
    line, seen = 1, 0
    expects_key = False
    for found in _TOKEN.finditer(text):
        line += text.count("\n", seen, found.start())
        seen = found.start()
        word = found.group()
        if word in "]}":
            above.pop()
            expects_key = False
        elif word == ",":
            place, last = above[-1]
            expects_key = isinstance(last, str)
            above[-1] = (place, "" if isinstance(last, str) else last + 1)
        elif word == ":":
            expects_key = False
        elif expects_key:
            place, _ = above[-1]
            key = str(json.loads(word))
            above[-1] = (place, key)
            at = (*place, key)
            if at in lines:
                document.faults.append(
                    (line, f"key {key!r} is set twice, first in line {lines[at]}.")
                )
            lines[at] = line
        else:
            at = (*above[-1][0], above[-1][1]) if above else ()
            lines.setdefault(at, line)
            if word in "[{":
                above.append((at, "" if word == "{" else 0))
                expects_key = word == "{"
