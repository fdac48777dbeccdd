"""Python files and modules that a user names: found, imported, and looked into."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import cast

from batchpolicy.errors import ConfigError
from batchpolicy.nearest import near

FILE_MODULE = "batchpolicy_file_"
"""What the names of modules that were imported from files begin with."""

# Validators of terms run deep inside pydantic, where no argument reaches them.
_BASE: ContextVar[Path | None] = ContextVar("batchpolicy_base", default=None)


@contextmanager
def relative_to(folder: Path | None) -> Generator[None, None, None]:
    """Paths of plugin files are relative to ``folder`` inside; None for the current one."""
    token = _BASE.set(folder)
    try:
        yield
    finally:
        _BASE.reset(token)


def absolute(where: str) -> Path:
    """A path of a parameter: one that is relative starts from the folder of the policy file."""
    return (_BASE.get() or Path.cwd()) / os.path.expanduser(where)


def module_of_file(path: Path) -> ModuleType:
    """The module in a file, imported once for each content of the file."""
    try:
        source = path.read_bytes()
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a Python file.") from None
    except FileNotFoundError as e:
        beside = path.parent.glob("*.py") if path.parent.is_dir() else ()
        raise ConfigError(
            f"no file {str(path)!r}.{near(path.name, [p.name for p in beside])}"
        ) from e
    except (OSError, ValueError) as e:  # ValueError: a NUL in the path
        raise ConfigError(f"{str(path)!r} cannot be read: {said(e)}.") from e
    key = hashlib.sha256(str(path.resolve()).encode() + b"\0" + source).hexdigest()[:16]
    name = f"{FILE_MODULE}{key}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # pydantic and dataclasses look a class's module up by name while it is made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported: {said(e, path)}") from e
    return module


def module_named(where: str, name: str) -> ModuleType:
    """The module ``where``, which the plugin ``name`` is in."""
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as e:
        if e.name and (where == e.name or where.startswith(f"{e.name}.")):
            raise ConfigError(f"no module named {e.name!r}, asked for by {name!r}.") from e
        raise ConfigError(f"{name!r} needs {e.name!r}, which is not installed.") from e
    except (Exception, SystemExit) as e:
        raise ConfigError(f"module {where!r} cannot be imported: {said(e)}") from e


def attribute_of(module: ModuleType, where: str, attribute: str) -> object:
    """What a module calls ``attribute``; ``where`` is how the user named the module."""
    try:
        return reduce(getattr, attribute.split("."), cast(object, module))
    except AttributeError as e:
        own = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise ConfigError(
            f"no class {attribute!r} in {where}.{near(attribute, own)} "
            f"Classes: {', '.join(own) or 'none'}."
        ) from e


def said(error: BaseException, path: Path | None = None) -> str:
    """Kind and text of an error in one line, with the line of ``path`` it came from."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if path is None or isinstance(error, SyntaxError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{text} (line {lines[-1]})" if lines else text
