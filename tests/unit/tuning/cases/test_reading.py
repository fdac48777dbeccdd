from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.cases.reading import read_case, read_cases
from tests.unit.tuning.cases.files import ENGINE, TIMING, case, row, written


def _mistakes(folder: Path, **changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read_case(written(folder, case(**changes)))
    return str(raised.value).replace(f"{folder}/", "").splitlines()


def test_a_case_has_its_checks_by_kind_and_its_requests_as_rows(tmp_path: Path) -> None:
    checks = [{"kind": "ttft_max", "ids": "*", "max_s": 1}, {"kind": "status", "in": ["aborted"]}]
    read = read_case(written(tmp_path, case(checks=checks)))
    assert [check.kind for check in read.checks] == ["ttft_max", "status"]
    assert [r.id for r in read.requests] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"checks": [{"kind": "all_finish"}, {"kind": "ttft_mx", "max_s": 1}]},
            "case.json:38: checks[1].kind is 'ttft_mx'; expected a check. "
            "Did you mean 'ttft_max'? Known: all_finish, status, ttft_max,",
        ),
        ({"checks": []}, "checks is empty; expected a list of one or more checks."),
        ({"checks": ["all_finish"]}, "checks[0] is 'all_finish'; expected a mapping with a kind"),
        (
            {"checks": [{"kind": "wait_max", "max_s": -1}]},
            "checks[0].max_s is -1; expected a number greater than or equal to 0.",
        ),
        (
            {"checks": [{"kind": "wait_max", "max_s": 1, "percentil": 3}]},
            "unknown key 'checks[0].percentil'. Did you mean 'percentile'?",
        ),
        (
            {"checks": [{"kind": "status", "in": ["refused"]}]},
            "checks[0].in[0] is 'refused'; expected 'finished', 'aborted', 'expired',",
        ),
        (
            {"checks": [{"kind": "within", "event": "finish", "min_s": 3, "max_s": 1}]},
            "max_s 1 is before min_s 3; expected it to be later",
        ),
        (
            {
                "checks": [
                    {"kind": "share_between", "tenant": "", "tenants": [""], "window_s": [20, 0]}
                ]
            },
            "checks[0].window_s is a list; it ends at 0, expected a time after 20.",
        ),
        (
            {"checks": [{"kind": "preemptions_max"}]},
            "checks[0] is a mapping; expected max_each or max_total.",
        ),
        (
            {"checks": [{"kind": "wait_max", "ids": ["a", "c*"], "max_s": 1}]},
            "checks[0].ids[1] is 'c*'; no request has such an id.",
        ),
        (
            {"timing": {**TIMING, "step_base_s": -0.02}},
            "timing.step_base_s is -0.02; expected a number greater than or equal to 0.",
        ),
        (
            {"timing": {**TIMING, "step_base_s": 0, "decode_s_per_seq": 0}},
            "the clock stands still; expected every step to take time",
        ),
        ({"engine": {**ENGINE, "max_seqs": 3}}, "unknown key 'engine.max_seqs'. Did you mean"),
        (
            {"engine": {**ENGINE, "block_size": 2048}},
            "block_size 2048 is above kv_capacity_tokens",
        ),
        ({"engine": None}, "engine is missing; a case of kind 'workload' needs it."),
        ({"needs": ["priorty"]}, "needs[0] is 'priorty'"),
        ({"kind": "workloads"}, "kind is 'workloads'; expected 'workload', 'tuning', 'ab'"),
        ({"schema_version": 2}, "schema_version is 2; expected 1."),
        ({"tital": ""}, "unknown key 'tital'. Did you mean 'title'?"),
        ({"exempt_invariants": ["I9"]}, "exempt_invariants[0] is 'I9'"),
        (
            {"operator_settings": {"max_wait": 3}},
            "unknown key 'operator_settings.max_wait'. Did you mean 'max_wait_s'?",
        ),
        (
            {"operator_settings": {"max_bypass_s": -3}},
            "operator_settings.max_bypass_s is -3; expected a number greater than or equal to 0.",
        ),
        (
            {"variants": [{"name": "v", "expect_same": ["order"], "operator_settings": {"x": 1}}]},
            "unknown key 'variants[0].operator_settings.x'.",
        ),
        (
            {"requests": [row("a"), row("b"), row("a")]},
            "case.json:33: requests[2].id: 'a' is used twice, first in requests[0].",
        ),
        (
            {"requests": [row("a", 2.0, cancel_at_s=1.0)]},
            "requests[0].cancel_at_s is 1; expected a time from the arrival at 2 on.",
        ),
        ({"requests": [row("a", -1.0)]}, "requests[0].arrival_s is -1.0; expected a number"),
        (
            {"requests": [row("ab"), row("b", arrival_after={"id": "abc"})]},
            "requests[1].arrival_after.id is 'abc'; no request has such an id. Did you mean 'ab'?",
        ),
        (
            {
                "requests": [
                    row("a", arrival_after={"id": "b"}),
                    row("b", arrival_after={"id": "a"}),
                ]
            },
            "requests[0].arrival_after: it follows itself, by way of others or not.",
        ),
        ({"requests": [row("a", prioritty=1)]}, "unknown key 'requests[0].prioritty'. Did you"),
        ({"requests": [{"id": "a"}]}, "requests[0].arrival_s is missing."),
    ],
)
def test_a_mistake_is_told_with_its_place_what_was_found_and_what_expected(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    found = _mistakes(tmp_path, **changes)
    assert any(said in line for line in found), found
    assert all(line.startswith("case.json:") for line in found)


def test_all_mistakes_of_all_files_come_at_once(tmp_path: Path) -> None:
    wrong = case(
        titel="x",
        requests=[row("a", prompt_tokens=0), row("b"), row("b")],
        checks=[{"kind": "al_finish"}, {"kind": "all_finish", "ids": ["c"]}],
    )
    one = written(tmp_path, wrong, "one.json")
    two = tmp_path / "two.json"
    two.write_text('{"id": "x",\n "id": 3,}')
    three = tmp_path / "three.json"
    three.write_text('{"a": NaN}')
    with pytest.raises(ConfigError) as raised:
        read_cases([one, two, three, tmp_path / "onne.json"])
    lines = str(raised.value).replace(f"{tmp_path}/", "").splitlines()
    assert sum(line.startswith("one.json:") for line in lines) == 5
    assert any("requests[0].prompt_tokens is 0" in line for line in lines)
    assert any("requests[2].id: 'b' is used twice" in line for line in lines)
    assert any("checks[0].kind is 'al_finish'" in line for line in lines)
    assert any("checks[1].ids[0] is 'c'" in line for line in lines)
    assert lines[5].startswith("two.json:2: not JSON: ")
    assert lines[6] == "three.json: not JSON: NaN is no number."
    assert lines[7] == "no file 'onne.json'. Did you mean 'one.json'?"


def test_a_key_that_is_set_twice_is_told_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    text = json.dumps(case(), indent=1)
    path.write_text(text.replace('"id": "T1",', '"id": "T1",\n "id": "T2",'))
    with pytest.raises(ConfigError, match=r":4: key 'id' is set twice, first in line 3\."):
        read_case(path)


def test_a_folder_means_all_its_files_and_an_id_may_come_once(tmp_path: Path) -> None:
    written(tmp_path, case(id="T2"), "a.json")
    written(tmp_path, case(id="T1"), "b.json")
    (tmp_path / "notes.md").write_text("no case")
    assert [one.id for one in read_cases([tmp_path, tmp_path / "a.json"])] == ["T2", "T1"]
    written(tmp_path, case(id="T1"), "c.json")
    with pytest.raises(ConfigError, match=r"c\.json: id 'T1' is used twice, first in .*b\.json"):
        read_cases([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no case in this folder"):
        read_cases([tmp_path / "empty"])
