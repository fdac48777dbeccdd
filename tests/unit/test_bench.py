from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints
from typing import ClassVar

import pytest

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress
from batchpolicy.cli import main


class Twice(Bench):
    """Measures how much two is."""

    summary: ClassVar[str] = "how much two is"
    engine: ClassVar[str] = "abacus"

    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        progress("counting")
        return BenchReport(
            "Two against one",
            [
                Measurement("two", "2.0x (1 to 2)", "<= 3x", met=True),
                Measurement("three", "3.0x", "<= 2x", met=False, reason="it is more"),
                Measurement("four", "4 beads"),
            ],
            ["Counted once."],
        )


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("twice", f"{__name__}:Twice", registry.BENCHES)])
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: found.select(**wanted))
    monkeypatch.setattr(registry, "load", lambda group, name: Twice)


def test_figures_stand_beside_their_goals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "twice"]) == 0
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "Two against one"
    assert [line.split() for line in lines[2:5]] == [
        ["two", "2.0x", "(1", "to", "2)", "<=", "3x", "met"],
        ["three", "3.0x", "<=", "2x", "not", "met", "it", "is", "more"],
        ["four", "4", "beads"],
    ]
    assert lines[5:] == ["Counted once."]
    assert err == "counting\n"


def test_quiet_and_json_are_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "twice", "--json", "--quiet", "--quick"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == ""
    assert (told["bench"], told["quick"], told["title"]) == ("twice", True, "Two against one")
    assert told["measurements"][1]["met"] is False
    assert told["measurements"][2]["met"] is None


def test_a_bench_of_one_engine_takes_that_one_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "twice", "--engine", "abacus", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["bench", "twice", "--engine", "vllm"]) == 2
    assert capsys.readouterr().err == "this bench measures 'abacus', not 'vllm'.\n"
