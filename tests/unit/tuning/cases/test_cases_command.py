from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from batchpolicy.cli import main
from tests.unit.tuning.cases.files import case, written

ROOT = Path(__file__).parents[4]
SHARED = ROOT.parent / "shared" / "cases"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cases"
    folder.mkdir()
    late = [{"kind": "wait_max", "ids": ["b"], "max_s": 0}]
    written(folder, case(), "1.json")
    written(folder, case(id="T2", checks=late), "2.json")
    written(folder, case(id="T3", needs=["deadline"]), "3.json")
    return folder


def test_outcomes_are_lines_and_a_failure_is_exit_1(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "out.json"
    command = ["cases", str(folder), "--policy", "priority", "--json", str(report)]
    assert main(command) == 1
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "T1 passed",
        "T2 failed wait_max",
        "    wait_max: expected at most 0 s; found 0.042 s (b)",
        "T3 not applicable: deadline (policy priority)",
        "1 passed, 1 failed, 1 not applicable",
    ]
    assert told.err == "3 cases on light, as vllm under priority\n"
    found = json.loads(report.read_text())
    assert found["kind"] == "CaseOutcomes"
    assert found["cases"][1]["failures"] == [
        {"kind": "wait_max", "expected": "at most 0 s", "found": "0.042 s (b)"}
    ]


def test_outcomes_as_expected_are_exit_0_and_others_exit_1(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = tmp_path / "x.expected"
    command = ["cases", str(folder), "--policy", "priority", "-q", "--expect", str(expected)]
    expected.write_text("T1 passed\nT2 failed wait_max\nT3 not applicable\n")
    assert main(command) == 0
    told = capsys.readouterr()
    assert not told.err
    assert told.out.splitlines()[-1] == "all as expected"
    expected.write_text("T1 passed\nT2 passed\nT3 not applicable\n")
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "not as expected: T2 failed wait_max: expected passed" in out
    assert main(["cases", str(folder / "1.json"), "-q"]) == 0


def test_bad_input_is_one_message_and_exit_2(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.expected").write_text("T1 fine")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    for more, said in (
        ([str(bad)], f"{bad}:1: not JSON: "),
        ([str(folder), "--expect", str(tmp_path / "x.expected")], "x.expected:1: found 'fine'"),
        ([str(folder), "--engine", "lihgt"], "Did you mean 'light'?"),
        ([str(folder), "--policy", "prioritty"], "Did you mean 'priority'?"),
        ([str(folder), "--json", "no/such/folder.json"], "no folder"),
    ):
        assert main(["cases", *more, "-q"]) == 2
        told = capsys.readouterr()
        assert said in told.err
        assert not told.out
        assert "Traceback" not in told.err


def test_the_example_of_the_page_gives_what_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    path = tmp_path / "late.json"
    path.write_text(text)
    assert main(["cases", "--quiet", "--policy", "priority", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"$ batchpolicy cases --quiet --policy priority late.json\n{out}" in page


@pytest.mark.shared
def test_the_shared_cases_end_as_the_example_expects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not SHARED.is_dir():
        pytest.skip("needs the cases beside the checkout, which are not there")
    monkeypatch.chdir(ROOT)
    command = ["cases", str(SHARED), "--engine", "light", "--policy"]
    command += ["examples/policies/priority.yaml", "--expect", "examples/cases/priority.expected"]
    assert main(command) == 0, capsys.readouterr().out
