"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchpolicy.errors import ConfigError


def check_apart(outputs: Sequence[Path], inputs: Iterable[str]) -> None:
    """Refuse outputs that cannot be written, or would replace each other or what is read.

    Raises
    ------
    ConfigError
        For the first such file.
    """
    read = {Path(text).resolve() for text in inputs}
    for i, path in enumerate(outputs):
        check_writable(path)
        if path.resolve() in read:
            raise ConfigError(f"{path}: is read by this command; write to another file.")
        if path.resolve() in {other.resolve() for other in outputs[:i]}:
            raise ConfigError(f"{path}: is given for two outputs; each takes a file of its own.")


def check_writable(path: Path) -> None:
    """Refuse a place where a report could not be written, before any work.

    Raises
    ------
    ConfigError
        When it is a folder, or its folder is missing or takes no file.
    """
    folder = path.resolve().parent
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is no ordinary file, which could be replaced in one go.")
    if not folder.is_dir():
        raise ConfigError(f"{path}: no folder {str(folder)!r}; make it first.")
    try:
        # Permission is not enough, as in /proc: a file is made, and is gone again.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}."):
            pass
    except OSError as e:
        raise ConfigError(f"{path}: {str(folder)!r} takes no file: {e.strerror}.") from e


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """Write a document as JSON in one go."""
    write_whole(json.dumps(document, indent=1, allow_nan=False) + "\n", path)


def write_whole(text: str, path: Path) -> None:
    """Write a text in one go: the file is whole, or as it was before.

    Raises
    ------
    OSError
        With the name of the file, where it cannot be written.
    """
    try:
        _write_whole(text, path.resolve())
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from e


def _write_whole(text: str, path: Path) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp lets nobody else read; a report is like any other file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
