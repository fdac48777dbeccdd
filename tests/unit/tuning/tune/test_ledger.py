from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune import ledger as ledger_file
from batchpolicy_tuning.tune import worker_id
from batchpolicy_tuning.tune.ledger import Claim, Ledger
from batchpolicy_tuning.tune.records import Outcome, TargetResult, TrialRecord
from batchpolicy_tuning.tune.storage import open_storage, study_in
from tests.support.tables import hill, ledger, ok, table

PROBLEM = table({(1, 1): [ok(1.0)], (2, 1): [ok(2.0)], (3, 1): [ok(3.0)]})


def _record(a: int) -> TrialRecord:
    return TrialRecord(
        number=-1,
        origin="sampled",
        label="x",
        key=str(a),
        parameters={"a": a, "b": 1},
        outcome=Outcome.RUNNING,
    )


def _claimed(kept: Ledger, a: int) -> Claim:
    claim = kept.claim(_record(a), most=100)
    assert claim is not None
    return claim


def _ended(claim: Claim, outcome: Outcome = Outcome.FEASIBLE) -> TrialRecord:
    target = TargetResult(target="t", value=0.5, bound=1.0, met=True, miss=-0.5)
    return claim.record.model_copy(
        update={"outcome": outcome, "values": {"goodput": 2.0}, "targets": (target,)}
    )


def test_of_two_at_one_setting_the_lower_number_keeps_it(tmp_path: Path) -> None:
    place = str(tmp_path / "journal.log")
    one, other = (ledger(PROBLEM, open_storage(place)) for _ in range(2))
    mine = _claimed(one, 1)
    assert other.claim(_record(1), most=100) is None
    assert other.claim(_record(2), most=100) is not None
    outcomes = [record.outcome for record in one.records()]
    assert outcomes == [Outcome.RUNNING, Outcome.WITHDRAWN, Outcome.RUNNING]
    assert one.end(mine, _ended(mine))
    assert other.claim(_record(1), most=100) is None


def test_no_more_than_so_many_are_given_out() -> None:
    kept = ledger(PROBLEM)
    assert kept.claim(_record(1), most=1) is not None
    assert kept.claim(_record(2), most=1) is None
    assert [one.outcome for one in kept.records()] == [Outcome.RUNNING, Outcome.WITHDRAWN]


def test_a_trial_that_was_given_back_can_be_claimed_again() -> None:
    kept = ledger(PROBLEM)
    kept.lose("interrupted", _claimed(kept, 1))
    again = _claimed(kept, 1)
    assert again.record.number == 1
    assert [one.outcome for one in kept.records()] == [Outcome.LOST, Outcome.RUNNING]


def test_optuna_sees_states_values_and_constraints(tmp_path: Path) -> None:
    place = str(tmp_path / "journal.log")
    kept = ledger(PROBLEM, open_storage(place))
    ends = [Outcome.FEASIBLE, Outcome.FAILED, Outcome.PRUNED]
    for a, outcome in enumerate(ends, start=1):
        claim = _claimed(kept, a)
        assert kept.end(claim, _ended(claim, outcome))
    study = optuna.load_study(study_name="table", storage=open_storage(place))
    states = [TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED]
    assert [one.state for one in study.trials] == states
    first = study.trials[0]
    assert first.params == {"a": 1, "b": 1}
    assert first.value == 2.0
    assert first.user_attrs["outcome"] == "feasible"
    assert first.system_attrs["constraints"] == [-0.5]
    assert study.best_trial.number == 0


def _ended_process() -> str:
    """The name of a worker of this machine that is no more."""
    code = "from batchpolicy_tuning.tune.worker_id import this_worker; print(this_worker())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_trial_of_a_process_that_ended_is_void_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = str(tmp_path / "journal.log")
    gone = _ended_process()
    assert worker_id.is_here(gone)
    assert worker_id.is_gone(gone)
    assert not worker_id.is_gone(worker_id.this_worker())
    with monkeypatch.context() as patched:
        patched.setattr(worker_id, "this_worker", lambda: gone)
        dead = ledger(PROBLEM, open_storage(place))
    claim = _claimed(dead, 1)
    alive = ledger(PROBLEM, open_storage(place))
    _claimed(alive, 2)
    assert alive.sweep() == 1
    assert alive.sweep() == 0
    outcomes = [one.outcome for one in alive.records()]
    assert outcomes == [Outcome.LOST, Outcome.RUNNING]
    assert not dead.end(claim, _ended(claim)), "it comes too late"
    assert next(iter(alive.records())).outcome is Outcome.LOST


def test_a_pid_that_was_used_again_is_another_worker() -> None:
    host_and_pid, _, start = worker_id.this_worker().rpartition("/")
    assert worker_id.is_gone(f"{host_and_pid}/{int(start) - 1}")
    assert not worker_id.is_gone(f"{host_and_pid}/{start}")
    assert f"/{os.getpid()}" in host_and_pid


def test_a_worker_elsewhere_is_gone_when_its_beat_stands_still(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = str(tmp_path / "journal.log")
    with monkeypatch.context() as patched:
        patched.setattr(worker_id, "this_worker", lambda: "elsewhere/1/1")
        far = ledger(PROBLEM, open_storage(place))
    claim = _claimed(far, 1)
    storage = open_storage(place)
    near = ledger(PROBLEM, storage)
    now_s = 1000.0
    monkeypatch.setattr(ledger_file.time, "monotonic", lambda: now_s)
    assert near.sweep() == 0
    now_s += ledger_file.GRACE_S - 1.0
    assert near.sweep() == 0
    storage.set_trial_user_attr(claim.trial_id, "beat", 1)
    now_s += 2.0
    assert near.sweep() == 0, "it beat meanwhile"
    now_s += ledger_file.GRACE_S + 1.0
    assert near.sweep() == 1


def test_trials_of_other_tools_in_the_study_are_left_alone() -> None:
    storage = optuna.storages.InMemoryStorage()
    kept = ledger(PROBLEM, storage)
    optuna.load_study(study_name="table", storage=storage).enqueue_trial({"a": 1})
    assert kept.records() == []
    assert kept.sweep() == 0
    assert _claimed(kept, 1).record.number == 1


def test_a_setting_outside_of_the_space_is_kept_without_its_parameters() -> None:
    kept = ledger(PROBLEM)
    claim = kept.claim(_record(99), most=5)
    assert claim is not None
    assert kept.records()[0].parameters == {"a": 99, "b": 1}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("oracle://x/y", "'oracle' is not known"),
        ("no/such/journal.log", "no folder 'no/such'"),
        ("tests", "is a folder"),
        ("postgresql://me:secret@127.0.0.1:1/none", "cannot be opened"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_one_message(place: str, said: str) -> None:
    with pytest.raises(Exception, match=said) as told:
        open_storage(place)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("cut", [1, 8, 40])
def test_an_entry_that_was_written_in_part_costs_no_other(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.log"
    kept = ledger(PROBLEM, open_storage(str(path)))
    mine = _claimed(kept, 1)
    kept.end(mine, _ended(mine))
    before = kept.records()
    whole = path.read_bytes()
    _claimed(kept, 2)
    entry = path.read_bytes()[len(whole) :].partition(b"\n")[0]
    path.write_bytes(whole + entry[:cut])
    storage = open_storage(str(path))
    assert path.read_bytes() == whole
    again = ledger(PROBLEM, storage)
    assert again.records() == before
    mine = _claimed(again, 2)
    assert again.end(mine, _ended(mine))
    assert len(ledger(PROBLEM, open_storage(str(path))).records()) == 2


@pytest.mark.parametrize(
    "text", ["hello", "hello\n", "[1]\n", '{"a": 1}\n', "5\n", '{"a', "{}\n{"]
)
def test_a_file_that_is_no_journal_is_refused_and_stays_as_it_is(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be read as a journal of trials"):
        open_storage(str(path))
    assert path.read_text() == text


def test_a_study_keeps_its_directions() -> None:
    storage = optuna.storages.InMemoryStorage()
    study_in(storage, "x", [False])
    assert study_in(storage, "x", [False]) == study_in(storage, "x", [False])
    with pytest.raises(Exception, match="has other objectives"):
        study_in(storage, "x", [True])


def test_a_beat_can_be_read_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "BEAT_S", 0.0)
    problem = table(hill(2))
    storage = optuna.storages.InMemoryStorage()
    kept = ledger(problem, storage)
    claim = kept.claim(_record(1), most=5)
    assert claim is not None
    with kept.beating(claim):
        while "beat" not in storage.get_trial(claim.trial_id).user_attrs:
            pass
    assert storage.get_trial(claim.trial_id).user_attrs["beat"] >= 1
