from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.cli import main
from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.settings import TUNED_LIMITS
from batchpolicy_tuning.tune.space import POLICY
from batchpolicy_tuning.tune.study import Study, changed_parts, read_study

HEAD = """\
apiVersion: batchpolicy/v1
kind: Study
workloads: [{workload: chat-and-batch}]
"""
SPACE = "space: {limits: {max_num_seqs: [16, 32]}}\n"
EXAMPLES = Path(__file__).parents[4] / "examples" / "studies"


def _study(tmp_path: Path, text: str, head: str = HEAD) -> Study:
    path = tmp_path / "study.yaml"
    path.write_text(head + text)
    return read_study(path)


def _faults(tmp_path: Path, text: str, head: str = HEAD) -> list[str]:
    with pytest.raises(ConfigError) as told:
        _study(tmp_path, text, head)
    prefix = re.escape(f"{tmp_path}/study.yaml:")
    return [re.sub(prefix, "", line) for line in str(told.value).splitlines()]


def test_a_short_study_has_the_defaults(tmp_path: Path) -> None:
    study = _study(tmp_path, SPACE)
    assert study.name == "study"
    assert study.file.search.trials == 40
    assert study.search_engine == study.file.engine == "light"
    assert [str(one) for one in study.objectives] == ["goodput"]
    assert study.baseline.config.policy.name == "fcfs"
    assert study.baseline.limits.max_num_seqs == 128
    assert study.settings.space.size == 2


@pytest.mark.parametrize(
    ("engine", "searched"), [("vllm", "light"), ("sglang", "light-sglang"), ("light", "light")]
)
def test_trials_run_on_the_light_engine_that_plans_alike(
    tmp_path: Path, engine: str, searched: str
) -> None:
    assert _study(tmp_path, f"engine: {engine}\n{SPACE}").search_engine == searched


def test_all_mistakes_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """\
targets: [ttft.p99<=500, itl.p99<=50ms, "jain>=0.9@tenant=x"]
objectives: [goodputt, cost, ttft.p99<=1s]
engin: light
engine: vlm
search: {trials: 0, sampler: tpee}
policies: [none.yaml]
space:
  policies:
    benefit: {lamda: tune, urgency.weight: [-1, 1], fairness.weights: tune}
    edff: tune
  limits:
    max_num_seqs: {low: 64, high: 32}
    max_num_batched_tokens: [99999]
    max_num_sequences: [1]
    watermark: high
"""
    faults = _faults(tmp_path, text)
    lines = {int(line.partition(":")[0]) for line in faults}
    assert lines == {4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 18}
    said = "\n".join(faults)
    for part in (
        "500 of what? Write ttft.p99<=500s",
        "itl.p99 is not measured in a replay; itl.max",
        "jain compares tenants",
        "unknown metric 'goodputt', did you mean 'goodput'?",
        "cost needs price_per_hour",
        "an objective has no bound",
        "unknown key 'engin'. Did you mean 'engine'?",
        "engine is 'vlm'; expected one of",
        "search.trials is 0",
        "search.sampler is 'tpee'",
        "none.yaml",
        "Did you mean 'lambda'?",
        "urgency.weight is -1",
        "low 64 is not below high 32",
        "was measured up to 8,192; nothing of this is within",
        "Did you mean 'max_num_seqs'?",
        "space.limits.watermark: expected numbers from 0 on",
    ):
        assert part in said, part


def test_a_part_that_cannot_be_read_hides_nothing_else(tmp_path: Path) -> None:
    head = """\
apiVersion: batchpolicy/v1
kind: Study
workloads:
  - {workload: chat-and-bach, slices: 0}
profile: h100
targets: [5, hello]
policies:
  - 7
  - fcsf
space: {policies: {benefit: {lamda: tune}}}
"""
    faults = _faults(tmp_path, "", head)
    said = (
        (4, "workloads[0].slices is 0"),
        (4, "Did you mean 'chat-and-batch'?"),
        (5, "no profile named 'h100'"),
        (6, "targets[0] is 5; expected a string."),
        (6, "target 'hello'"),
        (8, "policies[0] is 7; expected a string."),
        (9, "Did you mean 'fcfs'?"),
        (10, "Did you mean 'lambda'?"),
    )
    assert len(faults) == len(said), "nothing is told twice, and none of what follows from others"
    for line, part in said:
        assert any(one.startswith(f"{line}:") and part in one for one in faults), part


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("objectives: []\n" + SPACE, "objectives is empty; expected at least 1."),
        ("space: {limits: {watermark: [0.6, 0.7]}}\n", "it goes up to 0.5; nothing of this"),
        ("space: {}\n", "nothing to search"),
        ("space: {policies: {fcfs: tune}}\n", "has no ranges beside its fields"),
        ("space: {policies: {benefit: 3}}\n", "expected 'tune', dimensions by key"),
        (
            "space: {limits: {max_num_seqs: [64], max_num_batched_tokens: [32, 48]}}\n",
            "no engine starts so",
        ),
        ("limits: {max_num_batched_tokens: 64}\n" + SPACE, "is below max_num_seqs 128"),
        ("limits: {max_num_seqs: 4096, max_num_batched_tokens: 8192}\n" + SPACE, "measured up to"),
        ("limits: {kv_tokens: 8}\n" + SPACE, "one block of 16 tokens is more than the KV pool"),
        ("profile: h100-lama-3.1-8b\n" + SPACE, "Did you mean"),
        ("space: {limits: {max_num_seqs: [16, 16]}}\n", "a value is listed twice"),
        ("space: {limits: {max_num_seqs: [16.5]}}\n", "expected whole numbers from 1 on"),
        ("space: {limits: {max_num_seqs: {low: 1, high: 64, step: 0.001}}}\n", "over 10,000"),
        ("space: {policies: {benefit: {lambda: {low: 0, high: 1, log: true}}}}\n", "above 0"),
        ("targets: [jain>=0.9, jain>=0.9]\n" + SPACE, "is given twice"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert any(said in line for line in _faults(tmp_path, text))


def test_workload_files_that_are_not_there_are_told_with_a_near_name(tmp_path: Path) -> None:
    head = HEAD.replace("chat-and-batch}", "chat-and-bach, classes: none.yaml}")
    faults = _faults(tmp_path, SPACE, head)
    assert len(faults) == 2
    assert "Did you mean 'chat-and-batch'?" in faults[1] + faults[0]


def test_tune_takes_the_ranges_beside_the_fields(tmp_path: Path) -> None:
    space = _study(tmp_path, "space: {policies: {benefit: tune}}\n").settings.space
    found = {one.name: (one.low, one.high, one.log) for one in space.parameters}
    assert found["lambda"] == (0.01, 10.0, True)
    assert found["urgency.half_life_s"] == (0.05, 10.0, True)
    assert found["corridor_tokens"] == (1000.0, 200_000.0, True)
    assert "prices.recent_steps" not in found, "prices are off unless asked for"
    assert POLICY not in found


def test_ranges_lists_and_values_stand_in_place_of_the_fields_own(tmp_path: Path) -> None:
    text = """\
space:
  policies:
    fcfs:
    benefit:
      lambda: {low: 0.1, high: 1.0}
      urgency.weight: [1, 4]
      urgency.half_life_s: {low: 100ms, high: 2s, log: true}
      prices.recent_steps: tune
      fairness.scale_tokens: 5000
  limits:
    max_num_batched_tokens: {low: 512, high: 2048, step: 512}
    watermark: {low: 0, high: 0.1}
"""
    settings = _study(tmp_path, text).settings
    found = {one.name: one for one in settings.space.parameters}
    assert found[POLICY].choices == ("fcfs", "benefit")
    assert found["benefit:urgency.weight"].choices == (1, 4)
    half_life = found["benefit:urgency.half_life_s"]
    assert (half_life.low, half_life.high, half_life.log) == (0.1, 2.0, True)
    assert found["max_num_batched_tokens"].choices == (512, 1024, 1536, 2048)
    assert "benefit:fairness.scale_tokens" not in found
    params: dict[str, Any] = {
        POLICY: "benefit",
        "benefit:lambda": 0.7,
        "benefit:urgency.weight": 4,
        "benefit:urgency.half_life_s": 0.2,
        "benefit:prices.recent_steps": 50.0,
        "max_num_batched_tokens": 512,
        "watermark": 0.05,
    }
    assert settings.space.inside(params)
    setting = settings.of(params)
    assert setting.config.policy.params == {
        "fairness": {"scale_tokens": 5000},
        "lambda": 0.7,
        "urgency": {"weight": 4, "half_life_s": 0.2},
        "prices": {"recent_steps": 50.0},
    }
    assert (setting.limits.max_num_batched_tokens, setting.limits.watermark) == (512, 0.05)
    assert setting.limits.max_num_seqs == 128
    fcfs = settings.of({POLICY: "fcfs", "max_num_batched_tokens": 2048, "watermark": 0.0})
    assert fcfs.config.policy.params == {}


def test_the_space_is_clipped_to_what_the_profile_was_measured_for_and_told(
    tmp_path: Path,
) -> None:
    text = """\
space:
  limits:
    max_num_seqs: {low: 16, high: 1024, log: true}
    max_num_batched_tokens: [2048, 8192, 16384]
"""
    settings = _study(tmp_path, text).settings
    found = {one.name: one for one in settings.space.parameters}
    assert found["max_num_seqs"].high == 256
    assert found["max_num_batched_tokens"].choices == (2048, 8192)
    assert settings.notes == (
        "max_num_seqs: clipped to 16 to 256; profile h100-llama-3.1-8b was measured up to 256.",
        "max_num_batched_tokens: clipped to 2,048, 8,192; profile h100-llama-3.1-8b was measured "
        "up to 8,192.",
    )


def test_equal_settings_have_one_key_however_they_are_said(tmp_path: Path) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text(
        "apiVersion: batchpolicy/v1\nkind: Policy\npolicy: {name: benefit, lambda: 0.5}\n"
    )
    text = """\
policies: [mine.yaml, benefit]
space: {policies: {benefit: {lambda: [0.5, 1.0]}}}
"""
    study = _study(tmp_path, text)
    keys = {one.key for one in study.given.values()}
    assert len(keys) == 1, "0.5 is what lambda is anyway"
    assert study.settings.of({"lambda": 0.5}).key in keys
    assert study.settings.of({"lambda": 1.0}).key not in keys
    assert study.baseline.key not in keys


def test_a_change_is_told_by_its_part_and_whether_trials_still_count(tmp_path: Path) -> None:
    before = _study(tmp_path, SPACE).fingerprint()
    assert changed_parts(before, _study(tmp_path, SPACE).fingerprint()) == ([], True)
    more = _study(tmp_path, "search: {trials: 99}\n" + SPACE).fingerprint()
    assert changed_parts(before, more) == ([], True)
    wider = _study(tmp_path, SPACE.replace("32", "64")).fingerprint()
    assert changed_parts(before, wider) == (["space"], True)
    seed = _study(tmp_path, "search: {seed: 1}\n" + SPACE).fingerprint()
    assert changed_parts(before, seed) == (["search.seed"], False)
    target = _study(tmp_path, "targets: [jain>=0.9]\n" + SPACE).fingerprint()
    assert changed_parts(before, target) == (["targets"], False)


def test_the_contents_of_trace_files_are_part_of_a_study(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    head = HEAD.replace("chat-and-batch", "trace.jsonl")
    trace.write_text("{}\n")
    before = _study(tmp_path, SPACE, head).fingerprint()
    trace.write_text("{}\n{}\n")
    assert changed_parts(before, _study(tmp_path, SPACE, head).fingerprint())[0] == ["workloads"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_sound(path: Path) -> None:
    study = read_study(path)
    assert study.targets
    assert set(TUNED_LIMITS) & {one.name for one in study.settings.space.parameters}


def test_the_schema_knows_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"workloads", "targets", "objectives", "space", "search"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False
