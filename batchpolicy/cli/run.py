"""One command, whatever it raises, to one exit status."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import cast

import typer

from batchpolicy.cli.app import app
from batchpolicy.cli.output import FAULT, INTERRUPTED, INVALID, USAGE
from batchpolicy.errors import (
    BatchPolicyError,
    ConfigError,
    EngineUnavailable,
    Interrupted,
    StepLimitReached,
    WorkloadError,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_LOCKED = (errno.EACCES, errno.EROFS)
_THE_USERS = (ConfigError, WorkloadError, EngineUnavailable)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 ok, 1 fault, 2 usage, 3 nothing feasible, 4 a gate failed, 5 the measurement is invalid
    or inconclusive, 130 Ctrl-C.
    Commands of other packages raise ``BatchPolicyError`` and leave the rest to this.
    """
    # Behind everything installed, so that no file of the user's shadows a library.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    # A sign that the terminal cannot show is no reason to fail.
    if hasattr(sys.stdout, "reconfigure"):
        cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="replace")
    try:
        for argument in sys.argv[1:] if arguments is None else arguments:
            _refuse_no_text(argument)
        status = _run(arguments)
        if sys.stdout is not None:  # as where a shell closed it
            sys.stdout.flush()
    except _NoText as e:
        return _told(e, USAGE)
    except Interrupted as e:
        return _told(e, INTERRUPTED)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has enough.
        _drop_output()
        return FAULT
    except OSError as e:
        if e.filename is not None and e.errno in (*_FULL, *_LOCKED):
            return _told(f"{e.filename}: {e.strerror}", FAULT)
        # What stdout raises names no file.
        if e.filename is not None or e.errno not in _FULL:
            raise
        _drop_output()
        return _told(f"output cannot be written: {e.strerror}", FAULT)
    if status == INTERRUPTED:
        return _told("interrupted; nothing was written", status)
    return status


class _NoText(ConfigError):
    """An argument in bytes that the locale has no letters for."""


def _refuse_no_text(argument: str) -> None:
    # Python keeps such bytes as surrogates, which cannot be written to any file later on.
    try:
        argument.encode()
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        raise _NoText(
            f"argument {argument!r} is no text in this environment, which is {encoding}. "
            "Set PYTHONUTF8=1 or a UTF-8 locale; a file whose name is not UTF-8 has to be renamed."
        ) from None


def _told(what: object, status: int) -> int:
    print(what, file=sys.stderr)
    return status


def _drop_output() -> None:
    # The interpreter flushes what is left at its exit, and must not complain then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    try:
        command = typer.main.get_command(app)
        command.main(args=None if arguments is None else list(arguments), prog_name="batchpolicy")
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else FAULT if e.code else 0
    except StepLimitReached as e:
        return _told(e, INVALID)
    except Interrupted:
        raise
    except BatchPolicyError as e:
        return _told(e, USAGE if isinstance(e, _THE_USERS) else FAULT)
    return 0
