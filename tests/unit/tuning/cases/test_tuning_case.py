"""Cases of the tuner, and tuners that they catch."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.cli import main
from batchpolicy.errors import ConfigError
from batchpolicy_tuning.cases import tuning_case
from batchpolicy_tuning.cases.reading import read_case
from batchpolicy_tuning.tune import sampler, search
from batchpolicy_tuning.tune.judging import Goal, Verdict
from batchpolicy_tuning.tune.records import Outcome, TrialRecord

SHARED = Path(__file__).parents[5] / "shared" / "cases" / "bp-s25-tuner.json"
CASE: dict[str, Any] = {
    "schema_version": 1,
    "id": "TABLE",
    "kind": "tuning",
    "needs": ["tuner"],
    "tuning": {
        "parameters": {"a": [1, 2], "b": [1, 2]},
        "constraints": {"ttft_s": {"max": 1.0}, "completed": {"min": 10}},
        "objective": {"metric": "tok_s", "direction": "maximize"},
        "table": [
            {"params": {"a": 1, "b": 1}, "result": {"status": "ok", "completed": 10,
                                                    "ttft_s": 0.9, "tok_s": 100}},
            {"params": {"a": 1, "b": 2}, "result": {"status": "failed", "reason": "no memory"}},
            {"params": {"a": 2, "b": 1}, "result": {"status": "ok", "completed": 2,
                                                    "ttft_s": 0.1, "tok_s": 900}},
            {"params": {"a": 2, "b": 2}, "result": {"status": "ok", "completed": 10,
                                                    "tok_s": 800}},
        ],
        "scenarios": [
            {"name": "full", "trials": 4, "result": "feasible", "best": {"a": 1, "b": 1}},
            {"name": "none", "trials": 4, "constraints": {"ttft_s": {"max": 0.05}},
             "result": "infeasible"},
            {"name": "twice", "trials": 3, "seed": 7, "result": "the same"},
        ],
    },
    "checks": [
        {"kind": "tuning_answer", "scenario": "full"},
        {"kind": "tuning_answer", "scenario": "none"},
        {"kind": "tuning_same_twice", "scenario": "twice"},
        {"kind": "tuning_no_repeat_of_failed"},
    ],
}  # fmt: skip


def _failures(tmp_path: Path, case: dict[str, Any] | None = None) -> list[str]:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(case or CASE))
    return [failure.kind for failure in tuning_case.failures_of(read_case(path))]


def test_the_tuner_passes(tmp_path: Path) -> None:
    assert _failures(tmp_path) == []


@pytest.mark.shared
def test_the_shared_case_passes(capsys: pytest.CaptureFixture[str]) -> None:
    if not SHARED.exists():
        pytest.skip("needs the shared cases beside the checkout")
    assert main(["cases", str(SHARED), "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "BP-S25 passed"


def test_a_tuner_that_takes_what_is_missing_for_met_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lenient(limits: Sequence[Any], goals: Sequence[Goal], values: Any) -> Verdict:
        known = [one.judge(values) for one in limits if one.key in values]
        met = all(one.met for one in known)
        return Verdict(Outcome.FEASIBLE if met else Outcome.INFEASIBLE, "", tuple(known))

    monkeypatch.setattr(search, "judge", lenient)
    assert "tuning_answer" in _failures(tmp_path)


def test_a_tuner_that_drops_a_limit_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search.judge
    monkeypatch.setattr(search, "judge", lambda limits, goals, v: whole(limits[:1], goals, v))
    assert "tuning_answer" in _failures(tmp_path)


def test_a_tuner_that_repeats_settings_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(self: sampler.Proposer, *_: object) -> sampler.Proposal:
        return sampler.Proposal({"a": 1, "b": 2})

    def every(self: Any, record: TrialRecord, most: int) -> Any:
        return whole(self, record.model_copy(update={"key": str(next(numbers))}), most)

    numbers = iter(range(100))
    whole = search.Ledger.claim
    monkeypatch.setattr(sampler.Proposer, "propose", again)
    monkeypatch.setattr(search.Ledger, "claim", every)
    assert "tuning_no_repeat_of_failed" in _failures(tmp_path)


def test_a_tuner_that_takes_failures_for_results_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "BatchPolicyError", ZeroDivisionError)
    with pytest.raises(search.TrialFailed):
        _failures(tmp_path)


def test_a_tuner_without_seed_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter(range(100))
    whole = sampler.Proposer.__init__

    def seeded(self: Any, space: Any, name: Any, seed: int, *others: int) -> None:
        whole(self, space, name, next(seeds), *others)

    monkeypatch.setattr(sampler.Proposer, "__init__", seeded)
    assert "tuning_same_twice" in _failures(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tuning": None}, "tuning is missing"),
        ({"checks": [{"kind": "tuning_answer", "scenario": "ful"}]}, "Did you mean 'full'?"),
        ({"checks": [{"kind": "all_finish"}]}, "this case is of the tuner"),
        ({"checks": [{"kind": "tuning_answer"}]}, "scenario is missing"),
    ],
)
def test_mistakes_in_a_case_are_told(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", "\\?")):
        _failures(tmp_path, {**CASE, **change})


def test_a_table_has_each_setting_once(tmp_path: Path) -> None:
    case = copy.deepcopy(CASE)
    case["tuning"]["table"].pop()
    with pytest.raises(ConfigError, match="table has 3 settings, the parameters make 4"):
        _failures(tmp_path, case)
