"""One command, whatever it raises, to one exit status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

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
    try:
        status = _run(arguments)
        if sys.stdout is not None:  # as where a shell closed it
            sys.stdout.flush()
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
