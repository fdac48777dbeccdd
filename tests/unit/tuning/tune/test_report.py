from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.cli import main
from batchpolicy_tuning.tune.ledger import Ledger
from batchpolicy_tuning.tune.page import page
from batchpolicy_tuning.tune.records import Outcome
from batchpolicy_tuning.tune.result import StudyResult
from batchpolicy_tuning.tune.result_files import write_study
from batchpolicy_tuning.tune.space import Space
from batchpolicy_tuning.tune.storage import open_storage, study_in
from tests.support.studies import GOALS, SPACE, TRIALS, study, trial, unfinished

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "evening"
    found.mkdir()
    write_study(study(), found)
    return found


def _begun(folder: Path, **changes: Any) -> Ledger:
    """A study that was begun and has no trial in its file; its trials are in the journal."""
    place = folder / "journal.log"
    write_study(unfinished((), storage=str(place), **changes), folder)
    storage = open_storage(str(place))
    goals = [not goal.high_is_good for goal in GOALS]
    return Ledger(storage, study_in(storage, "evening", goals), Space(SPACE))


def _ended(ledger: Ledger, count: int) -> None:
    for one in TRIALS[:count]:
        claim = ledger.claim(one, len(TRIALS))
        assert claim is not None
        ledger.end(claim, one.model_copy(update={"number": claim.record.number}))


def test_the_page_and_tables_of_a_study(folder: Path, capsys: Captured) -> None:
    assert main(["tune", "report", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "Winner: trial 7 is better." in told
    assert f"To look at: {folder / 'report.html'}" in told
    assert (folder / "report.html").read_text() == page(study())


def test_the_file_itself_and_another_place_for_the_page_may_be_named(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.html"
    assert main(["tune", "report", str(folder / "study.json"), "-o", str(out)]) == 0
    assert out.read_text() == page(study())
    assert sorted(path.name for path in folder.iterdir()) == ["study.json"]


def test_json_is_what_is_shown(folder: Path, capsys: Captured) -> None:
    assert main(["tune", "report", str(folder), "--json"]) == 0
    printed = capsys.readouterr().out
    assert StudyResult.model_validate_json(printed) == study()
    assert printed == (folder / "study.json").read_text()
    assert not (folder / "report.html").exists()


def test_what_is_there_of_a_study_that_runs_is_shown(folder: Path, capsys: Captured) -> None:
    ledger = _begun(folder)
    assert main(["tune", "report", str(folder)]) == 0
    assert "Not at its end: 0 of 9 trials." in capsys.readouterr().out
    _ended(ledger, 3)
    ledger.claim(trial(3, Outcome.RUNNING), 9)
    assert main(["tune", "report", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "evening: 3 trials: 2 feasible, 1 infeasible" in told
    assert "Not at its end: 3 of 9 trials, 1 running, or their workers are gone." in told
    assert "best so far: trial 1, " in told
    assert "nothing is judged held out yet" in told
    assert "unless it still runs: batchpolicy tune evening.yaml --resume" in told
    assert "goodput by trial" in (folder / "report.html").read_text()
    # The file stays as it was: another process is at work there.
    assert json.loads((folder / "study.json").read_text())["trials"] == []


def test_a_study_that_was_moved_is_found(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    _ended(_begun(folder), 2)
    shutil.move(folder, tmp_path / "moved")
    assert main(["tune", "report", str(tmp_path / "moved"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 2


def test_trials_that_are_not_found_are_told(folder: Path, capsys: Captured) -> None:
    _ended(_begun(folder), 2)
    journal = folder / "journal.log"
    journal.rename(folder / "elsewhere")
    assert main(["tune", "report", str(folder)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "trials since then are not shown: no journal file" in told
    given = ["tune", "report", str(folder), "--json", "--storage"]
    assert main([*given, str(folder / "elsewhere")]) == 0
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 2
    assert main([*given, str(folder / "none")]) == 2
    assert "no journal file" in capsys.readouterr().err
    assert not (folder / "none").exists()
    write_study(unfinished((), name="morning"), folder)
    assert main([*given, str(folder / "elsewhere")]) == 2
    assert "has no study 'morning'" in capsys.readouterr().err


def test_a_database_whose_password_was_left_out_is_asked_for(
    folder: Path, capsys: Captured
) -> None:
    write_study(unfinished((), storage="postgresql://me:***@db/tuning"), folder)
    assert main(["tune", "report", str(folder), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes[-1].endswith("in postgresql://me:***@db/tuning; give its URL with --storage.")


def _refused(capsys: Captured, *arguments: str) -> str:
    assert main(["tune", "report", *arguments]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "Traceback" not in said.err
    return " ".join(said.err.split())


def test_what_is_no_study_is_refused_in_words(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    file, text = folder / "study.json", (folder / "study.json").read_text()
    assert "no folder" in _refused(capsys, str(tmp_path / "none"))
    assert "`batchpolicy tune` writes it" in _refused(capsys, str(tmp_path))
    (tmp_path / "journal.log").touch()
    assert "though there is a journal" in _refused(capsys, str(tmp_path))
    file.write_text(text[: len(text) // 2])
    assert "is damaged" in _refused(capsys, str(folder))
    file.write_bytes(b"\xff\xfe\x00")
    assert "is damaged" in _refused(capsys, str(folder))
    file.write_text(json.dumps({"kind": "Comparison"}))
    assert "kind is 'Comparison', expected 'TuningStudy'" in _refused(capsys, str(folder))
    file.write_text("[1]")
    assert "kind is None" in _refused(capsys, str(folder))


def test_a_study_of_a_newer_version_is_refused(folder: Path, capsys: Captured) -> None:
    file = folder / "study.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "apiVersion": "batchpolicy/v2"}))
    said = _refused(capsys, str(folder))
    assert "is of apiVersion 'batchpolicy/v2'" in said
    assert "(written by batchpolicy 0.1)" in said
    file.write_text(json.dumps({**told, "moons": 3}))
    assert "is no study of this version (written by batchpolicy 0.1): moons" in _refused(
        capsys, str(folder)
    )


def test_a_page_that_would_replace_the_result_is_refused(folder: Path, capsys: Captured) -> None:
    said = _refused(capsys, str(folder), "-o", str(folder / "study.json"))
    assert "is read by this command" in said
    assert "no folder" in _refused(capsys, str(folder), "-o", str(folder / "none" / "out.html"))


def test_without_what_draws_it_the_page_is_refused(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *more: Any, **named: Any) -> Any:
        if name == "batchpolicy_tuning.tune.page":
            raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert "needs Jinja2 and plotly" in _refused(capsys, str(folder))
    assert main(["tune", "report", str(folder), "--json"]) == 0
