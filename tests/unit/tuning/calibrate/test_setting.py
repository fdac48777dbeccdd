"""Limits of a run: read or asked for, never guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy.profiles import load_profile
from batchpolicy_tuning.calibrate.run_log import RunFacts
from batchpolicy_tuning.calibrate.setting import Asked, setting

BASE = load_profile("h100-llama-3.1-8b")
SAME = RunFacts(
    model=BASE.model, hardware=BASE.hardware, max_num_seqs=64, max_num_batched_tokens=2048
)


def test_an_option_goes_before_the_run_and_the_run_before_the_profile() -> None:
    says = replace(SAME, kv_tokens=1600)
    assert setting(Asked(kv_tokens=3200), says, BASE).kv_tokens == 3200
    assert setting(Asked(), says, BASE).kv_tokens == 1600
    found = setting(Asked(), SAME, BASE)
    assert found.kv_tokens == BASE.kv_tokens
    assert found.kv_source == f"that of profile {BASE.name}, of the same model on the same GPUs"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (replace(SAME, hardware=None), "the run names no GPU"),
        (replace(SAME, model=None), "the run names no model"),
        (
            replace(SAME, hardware="NVIDIA L40S"),
            "the run of meta-llama/Meta-Llama-3.1-8B on 1 x NV",
        ),
        (replace(SAME, model="other/model"), "the run of other/model"),
        (replace(SAME, tp=2), "on 2 x NVIDIA H100"),
    ],
)
def test_kv_tokens_of_another_gpu_or_model_are_not_taken(facts: RunFacts, said: str) -> None:
    with pytest.raises(ConfigError) as e:
        setting(Asked(), facts, BASE)
    assert "KV tokens: give --kv-tokens" in str(e.value)
    assert said in str(e.value)


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as e:
        setting(Asked(), RunFacts(), BASE)
    for option in ("--max-num-seqs", "--max-num-batched-tokens", "--kv-tokens"):
        assert option in str(e.value)


def test_limits_outside_the_envelope_of_the_profile_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs is 512, measured up to 256"):
        setting(Asked(max_num_seqs=512), SAME, BASE)


def test_blocks_are_those_of_the_run_and_whole() -> None:
    found = setting(Asked(), replace(SAME, kv_tokens=1000, kv_block_tokens=32), BASE)
    assert (found.limits.kv_blocks, found.limits.kv_block_tokens, found.kv_tokens) == (31, 32, 992)
    with pytest.raises(ConfigError, match="15 KV tokens are less than one block of 16"):
        setting(Asked(kv_tokens=15), SAME, BASE)


def test_prefix_caching_is_vllms_default_unless_said() -> None:
    assert setting(Asked(), SAME, BASE).limits.prefix_cache
    off = replace(SAME, prefix_cache=False)
    assert not setting(Asked(), off, BASE).limits.prefix_cache
    assert setting(Asked(prefix_cache=True), off, BASE).limits.prefix_cache
