"""Several processes at one study, one of which is killed in the middle of a trial."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest

from batchpolicy_tuning.tune.judging import best_of
from batchpolicy_tuning.tune.records import ENDED, VOID, Outcome
from batchpolicy_tuning.tune.storage import open_storage
from tests.support.tables import GOAL, hill, ledger, table

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
TRIALS, WORKERS = 24, 3
NOBODY = 65534


def _worker(place: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.tables", place, str(TRIALS), *arguments]
    return subprocess.Popen(command, cwd=ROOT)


def _check_that_nothing_is_lost_or_doubled(place: str) -> None:
    workers = [_worker(place, "die"), *(_worker(place) for _ in range(WORKERS))]
    try:
        codes = [worker.wait(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert codes == [-signal.SIGKILL, *[0] * WORKERS]
    problem = table(hill())
    kept = ledger(problem, open_storage(place))
    records = kept.records()
    ended = [one for one in records if one.outcome in ENDED]
    assert len(ended) == TRIALS
    assert len({one.key for one in ended}) == TRIALS
    assert {one.outcome for one in records} <= ENDED | VOID
    lost = [one for one in records if one.outcome is Outcome.LOST]
    assert len(lost) == 1, "the killed worker's"
    assert lost[0].key in {one.key for one in ended}, "its setting was tried again"
    assert best_of([GOAL], ended) is not None
    # What a dashboard reads.
    study = optuna.load_study(study_name="table", storage=open_storage(place))
    complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    assert len(complete) == TRIALS


def test_processes_share_a_journal_file(tmp_path: Path) -> None:
    _check_that_nothing_is_lost_or_doubled(str(tmp_path / "journal.log"))


def test_processes_share_a_postgresql_database() -> None:
    pytest.importorskip("psycopg")
    with _postgresql() as url:
        _check_that_nothing_is_lost_or_doubled(url)


@contextmanager
def _postgresql() -> Generator[str, None, None]:
    """A server of its own that only a socket in its folder leads to."""
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        pytest.skip("initdb and postgres are not on the path")
    prefix: list[str] = []
    # Not in tmp_path, whose parents let nobody else in: PostgreSQL does not run as root.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("PostgreSQL does not run as root, and setpriv is not there")
        os.chown(folder, NOBODY, NOBODY)
        prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    data = folder / "data"
    environment = {"PATH": os.environ["PATH"]}
    server: subprocess.Popen[bytes] | None = None
    try:
        subprocess.run(
            [*prefix, "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync",
             "-E", "UTF8", "--locale=C"],
            check=True, capture_output=True, cwd=folder, env=environment,
        )  # fmt: skip
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [*prefix, "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=",
                 "-c", "fsync=off"],
                stdout=log, stderr=log, cwd=folder, env=environment,
            )  # fmt: skip
        url = f"postgresql://postgres@/postgres?host={folder}"
        _wait_until_it_answers(server, folder, url)
        yield url
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)  # a fast shutdown
            server.wait(timeout=30)
        shutil.rmtree(folder)


def _wait_until_it_answers(server: subprocess.Popen[bytes], folder: Path, url: str) -> None:
    import psycopg

    until = time.monotonic() + 30.0
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > until:
                raise AssertionError((folder / "log").read_text()) from None
        else:
            return
