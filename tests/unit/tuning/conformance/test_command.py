"""The ``conformance`` command: light against itself, and against engines with a fault."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from batchpolicy.cli import main
from batchpolicy_tuning.conformance.workloads import random_problem

FAULTY = "tests.support.skewed_engine"
CASE = {
    "schema_version": 1,
    "id": "two-requests",
    "kind": "workload",
    "engine": {
        "kv_capacity_tokens": 1024,
        "block_size": 16,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 64,
    },
    "timing": {"step_base_s": 0.02},
    "requests": [
        {"id": i, "arrival_s": 0.0, "prompt_tokens": 64, "output_tokens": 3, "max_tokens": 3}
        for i in ("a", "b")
    ],
    "checks": [{"kind": "all_finish"}],
}


def conformance(*arguments: str) -> int:
    return main(["conformance", "--jobs", "1", *arguments])


def test_engines_that_are_equal_say_on_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance("--engine", "light", "--random", "12") == 0
    said = capsys.readouterr()
    assert said.out.startswith("Equal on 12 workloads and ")
    counted = {
        line[:28].strip(): int(line[28:])
        for line in said.out.splitlines()
        if line.startswith("  ")
    }
    assert counted["the engine's own order"] == counted["a policy's plan"] == 6
    assert counted["queueing"] >= 10
    assert "12 of 12: all equal" in said.err


def test_a_difference_is_shown_with_the_line_that_repeats_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    engine, file = f"{FAULTY}:FewerBlocks", tmp_path / "out.json"
    assert (
        conformance("--engine", engine, "--random", "2", "--seed", "4", "--json", str(file)) == 1
    )
    said = capsys.readouterr().out
    assert "random 4 under edf, preempt class: step 0 at 0 s is the first that differs" in said
    assert "- free KV blocks: 43 on light, 42 on fewer-blocks" in said
    assert f"again: batchpolicy conformance --engine {engine} --seed 5 --random 1" in said
    assert "2 of 2 workloads differ" in said
    told = json.loads(file.read_text(encoding="utf-8"))
    assert (told["workloads"], told["equal"]) == (2, 0)
    assert [d["again"] for d in told["differences"]] == [
        "--seed 4 --random 1", "--seed 5 --random 1"
    ]  # fmt: skip
    assert told["differences"][0]["light"]["free_kv_blocks"] == 43

    assert conformance("--engine", engine, "--random", "1", "--seed", "5", "--quiet") == 1
    alone = capsys.readouterr().out
    assert alone.split("\n\n")[0] in said


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("LateEnd", "all steps are the same, and the end is not"),
        ("Swapped", "the same tokens in another order"),
        ("Breaks", "ended with KeyError: 'lost'"),
    ],
)
def test_any_other_difference_is_found_as_well(
    fault: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance("--engine", f"{FAULTY}:{fault}", "--random", "1") == 1
    assert words in capsys.readouterr().out


def test_a_difference_that_one_workload_leaves_to_the_next_is_called_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert conformance("--engine", f"{FAULTY}:Remembers", "--random", "2") == 1
    said = capsys.readouterr().out
    assert "random 1 under" in said
    assert "a fresh engine does not differ" in said
    assert "1 of 2 workloads differ" in said


def test_what_the_real_engine_does_not_take_is_left_out_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watermarks = sum(random_problem(k).limits.watermark > 0 for k in range(4))
    assert 0 < watermarks < 4
    assert conformance("--engine", f"{FAULTY}:Timid", "--random", "4") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Equal on {4 - watermarks} workloads")
    assert said.count("timid refuses it: keeps no watermark.") == watermarks


def test_cases_are_compared_under_three_policies(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps(CASE), encoding="utf-8")
    assert conformance("--engine", "light", "--random", "0", "--cases", str(file)) == 0
    assert capsys.readouterr().out.startswith("Equal on 3 workloads")


def test_nothing_to_compare_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance("--engine", "light", "--random", "0") == 2
    assert "there is nothing to compare" in capsys.readouterr().err


def test_an_unknown_engine_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance("--engine", "ligth", "--random", "1") == 2
    assert "Did you mean 'light'?" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_missing_engine_is_wrong_usage_and_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert conformance("--engine", "vllm", "--random", "1") == 2
    said = capsys.readouterr()
    assert "make .venv-vllm" in said.err
    assert said.out == ""


def test_equal_numbers_give_equal_workloads() -> None:
    one, same, other = (random_problem(k) for k in (7, 7, 8))
    assert one.workload.digest() == same.workload.digest() != other.workload.digest()
    assert one.limits == same.limits
