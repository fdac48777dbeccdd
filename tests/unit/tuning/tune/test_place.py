from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune import storage
from batchpolicy_tuning.tune.place import is_hidden, shown_place, without_secrets
from batchpolicy_tuning.tune.storage import open_storage


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("--storage=postgresql://me:secret@host/db", "--storage=postgresql://me:***@host/db"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        # Marks that should have been written in percent, of which drivers take some.
        ("postgresql://me:sec/ret?:x@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:sec@ret@host/db", "postgresql://me:***@host/db"),
        ("postgresql:/me:secret@host/db", "postgresql:***@host/db"),
        ("me:secret@host/db", "me:***@host/db"),
        (
            "postgresql://host/db?user=me&password=secret",
            "postgresql://host/db?user=me&password=***",
        ),
        ("postgresql://host/db?PassWord=secret&a=b", "postgresql://host/db?PassWord=***&a=b"),
        ("postgresql://me:a@h/db?sslpassword=secret", "postgresql://me:***@h/db?sslpassword=***"),
    ],
)
def test_passwords_are_not_shown(place: str, shown: str) -> None:
    assert shown_place(place) == shown
    assert is_hidden(shown)
    assert not is_hidden(place)


@pytest.mark.parametrize(
    "place",
    [
        "tuned/x/journal.log",
        "postgresql://me@host:5432/db?sslmode=require",
        "postgresql://host:5432/db",
        "study.yaml",
        "ttft.p99<=1s@class=chat",
    ],
)
def test_what_has_no_password_stays_as_it_is(place: str) -> None:
    assert shown_place(place) == place
    assert not is_hidden(shown_place(place))


def test_what_a_driver_says_is_told_without_the_password() -> None:
    place = "postgresql://me:s%2Fcret@host/db?sslpassword=hush"
    said = f"no way to {place}: bad 's/cret', 's%2Fcret' and 'hush'"
    told = without_secrets(said, place)
    shown = "postgresql://me:***@host/db?sslpassword=***"
    assert told == f"no way to {shown}: bad '***', '***' and '***'"


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://me:hunter2@localhost:port/db",
        "postgresql://me:hunter2@localhost:1/db",
        "postgresql://localhost:1/db?password=hunter2",
        "POSTGRESQL://me:hunter2@localhost:1/db",
        "oracle://me:hunter2@host/db",
        "postgresql:/me:hunter2@host/db",
        "me:hunter2@host/db",
        "mysql+nothing://me:hunter2@host/db",
    ],
)
def test_no_refusal_tells_the_password(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(storage, "_PAUSE_S", 0.0)
    with pytest.raises(ConfigError) as told:
        open_storage(place)
    said, whole = str(told.value), "".join(_chain(told.value))
    assert "***" in said
    assert "hunter2" not in whole


def test_a_database_that_is_lost_is_told_in_a_line_without_the_password(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/trials.db?password=hunter2"
    found = open_storage(f"sqlite:///{tmp_path}/trials.db")
    study_id = storage.study_in(found, "x", [False])
    with pytest.raises(storage.StorageLost) as told, storage.answering(place):
        (tmp_path / "trials.db").write_bytes(b"")
        found.set_study_user_attr(study_id, "a", 1)
    said = str(told.value)
    assert said.startswith(f"--storage {shown_place(place)} was lost: ")
    assert said.endswith("go on with --resume")
    assert "\n" not in said
    assert "hunter2" not in "".join(_chain(told.value))


def test_other_faults_are_no_lost_database() -> None:
    with pytest.raises(ZeroDivisionError), storage.answering("x.log"):
        raise ZeroDivisionError


def _chain(fault: BaseException | None) -> list[str]:
    """What a traceback would show."""
    if fault is None:
        return []
    inner = fault.__cause__ or (None if fault.__suppress_context__ else fault.__context__)
    return [str(fault), *_chain(inner)]
