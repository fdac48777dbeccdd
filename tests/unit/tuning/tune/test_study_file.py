from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from batchpolicy import registry
from batchpolicy.cli import main
from batchpolicy.errors import ConfigError
from batchpolicy_tuning import engines
from batchpolicy_tuning.prefix_cache import on
from batchpolicy_tuning.tune.engine_limits import TUNED_LIMITS
from batchpolicy_tuning.tune.problem import draw
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
    ("installed", "engine"), [([], "light"), (["vllm"], "vllm"), (["sglang"], "sglang")]
)
def test_finalists_run_on_the_engine_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], engine: str
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: name in installed or None)
    assert engines.engine_here() == engine


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


SGLANG = HEAD + "engine: sglang\n"


def test_what_sglang_has_not_is_refused_at_once_where_it_stands(tmp_path: Path) -> None:
    text = """\
limits: {watermark: 0.01, max_num_batched_tokens: 1000, max_loras: 2, async_scheduling: true}
space:
  limits:
    max_num_batched_tokens: {low: 512, high: 4096}
    watermark: [0, 0.01]
    long_prefill_token_threshold: [0, 512]
"""
    faults = _faults(tmp_path, text, SGLANG)
    lacks = "engine sglang has no such limit; leave it out, or judge on another engine: vllm."
    real = "run them where finalists run, search: {engine: sglang}."
    pages = "engine sglang cuts prompts at the ends of KV blocks, of 16 tokens here"
    assert len(faults) == 7
    assert [line for line in faults if line.endswith(lacks)] == [
        f"5: limits.watermark: {lacks}",
        f"9: space.limits.watermark: {lacks}",
        f"10: space.limits.long_prefill_token_threshold: {lacks}",
    ]
    assert [
        line.partition(": trials run on light-sglang")[0] for line in faults if real in line
    ] == [
        "5: limits.async_scheduling",
        "5: limits.max_loras",
    ]
    assert [line.partition(f"; {pages}")[0] for line in faults if f"; {pages}" in line] == [
        "5: limits.max_num_batched_tokens is 1000"
    ]
    assert [line for line in faults if f": {pages}" in line] == [
        f"8: space.limits.max_num_batched_tokens: {pages} (limits.block_size): expected a list of "
        "multiples, or low, high and step."
    ]


def test_multiples_of_a_block_are_searched_on_sglang(tmp_path: Path) -> None:
    given = "max_num_batched_tokens: {low: 512, high: 4096, step: 512}"
    study = _study(tmp_path, f"space: {{limits: {{{given}}}}}\n", SGLANG)
    assert study.settings.space.size == 8
    (told,) = _faults(
        tmp_path, "space: {limits: {max_num_batched_tokens: [512, 520, 530]}}\n", SGLANG
    )
    assert "expected multiples, found 520, 530." in told
    # Other engines take any.
    _study(tmp_path, "space: {limits: {max_num_batched_tokens: [512, 520, 530]}}\n")


def test_trials_do_without_the_prefix_cache_that_the_light_engine_lacks(tmp_path: Path) -> None:
    study = _study(tmp_path, SPACE, SGLANG)
    assert study.baseline.limits.prefix_cache
    light = registry.engine(study.search_engine)
    assert not on(light, study.baseline.limits).prefix_cache
    drawn = draw(study, light)
    assert drawn.notes[0] == (
        "trials run without a prefix cache, which light-sglang has not; finalists have it"
    )
    # The light engine of vLLM has one, and so have finalists and trials there.
    plain = _study(tmp_path, SPACE)
    assert on(registry.engine("light"), plain.baseline.limits).prefix_cache
    assert not any("prefix cache" in note for note in draw(plain, registry.engine("light")).notes)


def test_no_cache_is_asked_of_a_light_engine_that_has_none(tmp_path: Path) -> None:
    head = HEAD + "engine: light-sglang\n"
    assert not _study(tmp_path, SPACE, head).baseline.limits.prefix_cache
    (told,) = _faults(tmp_path, f"limits: {{prefix_cache: true}}\n{SPACE}", head)
    assert told.startswith("5: limits.prefix_cache: engine light-sglang has no such limit")


def test_shared_prefixes_are_not_searched_without_a_cache(tmp_path: Path) -> None:
    turns = EXAMPLES.parent / "workloads" / "chat-sessions.yaml"
    head = SGLANG.replace("chat-and-batch", f"{turns}, slices: 1, held_out: 2, requests: 40")
    study = _study(tmp_path, SPACE, head)
    with pytest.raises(ConfigError, match=r"requests share prefixes.*search: \{engine: sglang\}"):
        draw(study, registry.engine("light-sglang"))
    off = _study(tmp_path, f"limits: {{prefix_cache: false}}\n{SPACE}", head)
    assert draw(off, registry.engine("light-sglang")).search


def test_an_engine_of_ones_own_is_asked_what_it_lacks(tmp_path: Path) -> None:
    module = tmp_path / "old.py"
    module.write_text(
        "from batchpolicy_sim import LightEngine\n"
        "class Old(LightEngine):\n"
        "    without = frozenset({'watermark'})\n"
    )
    head = HEAD + f"engine: '{module}:Old'\n"
    (told,) = _faults(tmp_path, "space: {limits: {watermark: [0, 0.01]}}\n", head)
    assert "has no such limit; leave it out, or judge on another engine: vllm" in told
