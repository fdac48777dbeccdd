from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from batchpolicy.config import config_named, load_config
from batchpolicy.engine import EngineLimits
from batchpolicy_tuning.tune.deploy import flags, write_policy
from batchpolicy_tuning.tune.settings import Setting
from batchpolicy_tuning.tune.verdict_text import summary_of
from tests.support.small_model import saved
from tests.support.studies import study

POLICIES = Path(__file__).parents[4] / "examples" / "policies"
LIMITS = EngineLimits(
    max_num_seqs=64, max_num_batched_tokens=2048, kv_blocks=1000, prefix_cache=True
)


@pytest.mark.parametrize(
    "name", [*sorted(map(str, POLICIES.iterdir())), "fcfs"], ids=lambda name: Path(name).stem
)
def test_a_written_policy_does_what_was_measured(tmp_path: Path, name: str) -> None:
    setting = Setting(config_named(name), LIMITS)
    path = tmp_path / "policy.yaml"
    write_policy(setting, path, ["batchpolicy tune x.yaml", "two\nlines"])
    assert Setting(load_config(path), LIMITS).key == setting.key
    text = path.read_text()
    assert text.startswith("# batchpolicy tune x.yaml\n# two\n# lines\napiVersion: batchpolicy/v1")


def test_a_class_in_a_file_is_found_from_anywhere(tmp_path: Path) -> None:
    example = POLICIES.parent / "custom_policy" / "policy.yaml"
    setting = Setting(load_config(example), LIMITS)
    path = tmp_path / "policy.yaml"
    write_policy(setting, path, [])
    assert Setting(load_config(path), LIMITS).key == setting.key


@pytest.mark.parametrize(
    "predictor",
    [
        "{name: gradient-boosting, model: small.bp}",
        "{name: tracked, inner: {name: gradient-boosting, model: small.bp}}",
    ],
)
def test_a_model_is_found_from_anywhere(tmp_path: Path, predictor: str) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    saved(home)
    file = home / "policy.yaml"
    file.write_text(
        f"apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\npredictor: {predictor}\n"
    )
    setting = Setting(load_config(file), LIMITS)
    write_policy(setting, away / "policy.yaml", [])
    assert str(home / "small.bp") in (away / "policy.yaml").read_text()


def test_flags_are_those_of_each_engine() -> None:
    limits = replace(LIMITS, long_prefill_token_threshold=512, watermark=0.05)
    found = flags(limits)
    assert found["vllm"] == (
        "--max-num-seqs 64 --max-num-batched-tokens 2048 --long-prefill-token-threshold 512 "
        "--watermark 0.05"
    )
    assert found["sglang"] == (
        "--max-running-requests 64 --chunked-prefill-size 2048 --max-prefill-tokens 2048 "
        "--page-size 16"
    )
    assert "threshold" not in flags(LIMITS)["vllm"]


def test_flags_name_the_kv_block_where_an_engine_would_take_another() -> None:
    found = flags(replace(LIMITS, kv_block_tokens=32))
    assert found["vllm"].endswith(" --block-size 32")
    assert found["sglang"].endswith(" --page-size 32")
    # SGLang would take one token.
    assert "block" not in flags(LIMITS)["vllm"]
    assert flags(replace(LIMITS, kv_block_tokens=1))["sglang"].endswith(" --page-size 1")


def test_the_engine_of_the_study_is_the_one_to_start() -> None:
    vllm = "batchpolicy serve --policy policy.yaml -- MODEL --max-num-seqs 16"
    sglang = (
        "batchpolicy serve --engine sglang --policy policy.yaml -- MODEL --max-running-requests 16"
    )
    of_vllm = summary_of(study(), "it is better")
    assert of_vllm[-2:] == (f"  deploy: {vllm}", "  SGLang: --max-running-requests 16")
    of_sglang = summary_of(study(study={"kind": "Study", "engine": "sglang"}), "it is better")
    assert of_sglang[-2:] == (f"  deploy: {sglang}", "  vLLM: --max-num-seqs 16")


def test_who_measured_without_a_prefix_cache_deploys_without_one() -> None:
    found = flags(replace(LIMITS, prefix_cache=False))
    assert found["vllm"].endswith(" --no-enable-prefix-caching")
    assert found["sglang"].endswith(" --disable-radix-cache")
