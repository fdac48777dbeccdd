"""Where the trials of a study are kept: a journal file, or a database that many machines reach."""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import StudyDirection

from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy_tuning.tune.place import shown_place, without_secrets

_URL = re.compile(r"(?P<scheme>[A-Za-z0-9+]+)://(?P<rest>.*)", re.S)
_SCHEMES = ("postgresql", "mysql", "sqlite")
_DRIVERS = ("sqlalchemy", "psycopg", "sqlite3", "MySQLdb", "pymysql")
_TIMES, _PAUSE_S = 10, 0.3
_ENTRY = b'{"op_code":'


def open_storage(place: str) -> BaseStorage:
    """The storage at a database URL or, for anything else, in a journal file.

    Raises
    ------
    ConfigError
        When it cannot be opened, or its driver is not installed.
    """
    found = _URL.fullmatch(place)
    if found is None:
        return _journal(Path(place))
    scheme = found["scheme"].lower()
    base = scheme.partition("+")[0]
    if base not in _SCHEMES:
        raise ConfigError(
            f"--storage {shown_place(place)}: {scheme!r} is not known; give a journal file, or "
            "postgresql://USER:PASSWORD@HOST/DATABASE"
        )
    url = f"{scheme}://{found['rest']}"
    if scheme == "postgresql":
        if find_spec("psycopg") is None:
            raise ConfigError(
                "--storage postgresql://... needs psycopg, which is not installed; "
                "pip install 'batchpolicy[postgres]'"
            )
        url = f"postgresql+psycopg://{found['rest']}"
    try:
        return _database(url)
    except Exception as fault:
        # Drivers raise what they like; none of them says more than its first line.
        said = str(fault).strip().splitlines() or [type(fault).__name__]
        told = without_secrets(said[0], place)
        # The cause could have the password in it, and is not kept.
        raise ConfigError(f"--storage {shown_place(place)} cannot be opened: {told}") from None


def _database(url: str) -> BaseStorage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_TIMES):
            try:
                return get_storage(url)
            except Exception as fault:
                # Two that come first to a database both make its tables, and one is too late.
                if type(fault).__name__ not in ("IntegrityError", "ProgrammingError"):
                    raise
                time.sleep(_PAUSE_S)
        return get_storage(url)


class StorageLost(BatchPolicyError):
    """A database that was there does not answer any more."""


@contextmanager
def answering(place: str) -> Generator[None, None, None]:
    """Says in one line that a database was lost inside, as over a network.

    Raises
    ------
    StorageLost
        In place of what Optuna or the driver raised.
    """
    try:
        yield
    except Exception as fault:
        # Optuna wraps some of them; drivers have classes of their own.
        cause = fault.__cause__ if isinstance(fault, StorageInternalError) else fault
        if cause is None or type(cause).__module__.partition(".")[0] not in _DRIVERS:
            raise
        said = without_secrets(str(cause).strip().partition("\n")[0], place)
        raise StorageLost(
            f"--storage {shown_place(place)} was lost: {said}. Trials that ended are in it; once "
            "it answers, go on with --resume"
        ) from None


def _journal(path: Path) -> BaseStorage:
    shown = shown_place(str(path))  # it may be a URL that was mistyped
    if path.is_dir():
        raise ConfigError(f"--storage {shown}: is a folder; give the name of a journal file.")
    if not path.parent.is_dir():
        folder = without_secrets(str(path.parent), str(path))
        raise ConfigError(f"--storage {shown}: no folder {folder!r}; make it first.")
    try:
        if path.exists():
            _check_end(path)
        return JournalStorage(JournalFileBackend(str(path)))
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ConfigError(
            f"--storage {shown} cannot be read as a journal of trials: "
            f"{without_secrets(str(fault), str(path))}. "
            "Give the journal of a study, or the name of a new file"
        ) from None


def _check_end(path: Path) -> None:
    """Take away an entry at the end that was written in part, as on a full disk.

    What is written behind such an entry would make one line with it that nobody can read.
    A file that is no journal stays as it is.

    Raises
    ------
    ValueError
        When the end is no entry of a journal.
    """
    # Others may be writing: what is seen without the lock need not be the end.
    if not _part(path) or not os.access(path.parent, os.W_OK):
        return
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        left = _part(path)
        if left:
            os.truncate(path, path.stat().st_size - left)
    finally:
        lock.release()


def _part(path: Path) -> int:
    """Bytes of an entry at the end that was written in part."""
    whole, _, part = path.read_bytes().rpartition(b"\n")
    if whole and "op_code" not in json.loads(whole.rpartition(b"\n")[2]):
        raise ValueError("its last line is no entry")
    if part[: len(_ENTRY)] != _ENTRY[: len(part)]:
        raise ValueError("it ends with what is no entry")
    return len(part)


def study_in(storage: BaseStorage, name: str, low_is_good: Sequence[bool]) -> int:
    """Id of the study of that name; a new one if there is none.

    Raises
    ------
    ConfigError
        When there is one with other objectives.
    """
    directions = [
        StudyDirection.MINIMIZE if low else StudyDirection.MAXIMIZE for low in low_is_good
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(
            storage=storage, study_name=name, directions=directions, load_if_exists=True
        )
    if study.directions != directions:
        raise ConfigError(
            f"study {name!r} in that storage has other objectives than this file; "
            "give another --storage, or the file another name"
        )
    return storage.get_study_id_from_name(name)
