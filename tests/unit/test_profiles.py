from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy.profiles import Profile, load_profile, profile_names
from batchpolicy.step_cost import StepShape


@dataclass(frozen=True)
class Asked:
    max_num_seqs: int
    max_num_batched_tokens: int


@pytest.fixture
def h100() -> Profile:
    return load_profile("h100-llama-3.1-8b")


@pytest.fixture
def fields(h100: Profile) -> dict[str, Any]:
    return h100.model_dump(mode="json")


def written(fields: dict[str, Any], folder: Path) -> Path:
    file = folder / "mine.json"
    file.write_text(json.dumps(fields))
    return file


def test_the_h100_profile_is_shipped() -> None:
    assert "h100-llama-3.1-8b" in profile_names()


@pytest.mark.parametrize("name", profile_names())
def test_a_shipped_profile_says_what_it_is(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.origin.licence == "Apache-2.0"
    assert "no CPU or scheduler overhead" in profile.origin.measures
    assert "uncalibrated" in profile.origin.measures
    assert profile.origin.date
    assert sum(part.rows for part in profile.fit.by_kind.values()) == profile.fit.overall.rows
    assert profile.fit.held_out.rows == profile.fit.overall.rows
    assert 0 < profile.fit.held_out.median < 0.05
    assert profile.fit.held_out.p95 < 0.12


def test_the_h100_profile_holds_the_kv_of_72_gib_less_weights_and_reserve(h100: Profile) -> None:
    # 0.9 * 80 GiB - 2 bytes * 8,030,261,248 parameters - 3.5 GiB = 57,490,792,448 bytes; a
    # token takes 2 * 32 layers * 8 heads * 128 * 2 bytes, and a block holds 16.
    free_bytes = 77_309_411_328 - 16_060_522_496 - 3_758_096_384
    assert h100.kv_memory.bytes_per_token == 131_072
    assert h100.kv_tokens == free_bytes // (131_072 * 16) * 16 == 438_608


def test_the_h100_profile_gives_what_its_formula_gives_by_hand(h100: Profile) -> None:
    # One decode at 1,024 tokens: 6.5909 ms for weights (20.89 us of arithmetic add
    # 6.5909 * (20.89 / 6590.9) ** 1.9481 / 1.9481 ms), 1,024 * 41.456 ns, 2.4308 us.
    one_s = 6.5909e-3 + 4.6e-8 + 1024 * 4.1456e-8 + 2.4308e-6
    assert h100.cost(StepShape(decodes=1, decode_context=1024, sequences=1)) == pytest.approx(
        one_s, rel=1e-4
    )
    # 8,192 tokens of one prompt: arithmetic takes 171.131 ms, to which the weights add
    # 171.131 * (6.5909 / 171.131) ** 1.9481 / 1.9481 = 0.155 ms, attention 24.038 ms.
    prompt_s = 0.171131 + 0.155e-3 + 8192**2 / 2 * 7.1638e-10 + 2.4308e-6
    assert h100.cost(
        StepShape(prefill_tokens=8192, attention=8192**2 / 2, sequences=1)
    ) == pytest.approx(prompt_s, rel=1e-4)


def test_the_h100_profile_is_near_rows_of_its_grid(h100: Profile) -> None:
    decode = StepShape(decodes=64, decode_context=64 * 1024, sequences=64)
    prefill = StepShape(prefill_tokens=2048, attention=2048**2 / 2, sequences=1)
    assert h100.cost(decode) == pytest.approx(0.01035, rel=h100.fit.overall.worst)
    assert h100.cost(prefill) == pytest.approx(0.04351, rel=h100.fit.overall.worst)


def test_limits_inside_the_envelope_pass(h100: Profile) -> None:
    h100.check_limits(Asked(max_num_seqs=256, max_num_batched_tokens=8192))


def test_limits_outside_the_envelope_are_refused_with_both_figures(h100: Profile) -> None:
    with pytest.raises(ConfigError) as e:
        h100.check_limits(Asked(max_num_seqs=257, max_num_batched_tokens=16_384))
    assert "max_num_seqs is 257, measured up to 256" in str(e.value)
    assert "max_num_batched_tokens is 16,384, measured up to 8,192" in str(e.value)


def test_contexts_past_those_measured_are_extended_and_end_at_131072(h100: Profile) -> None:
    assert not h100.is_extended(24_576)
    assert h100.is_extended(24_577)
    assert h100.is_extended(131_072)
    with pytest.raises(ConfigError, match=r"131,073 tokens.*131,072"):
        h100.is_extended(131_073)


def test_an_unknown_name_gets_the_nearest_one_and_the_list() -> None:
    with pytest.raises(ConfigError) as e:
        load_profile("h100-lama-3.1-8b")
    assert "Did you mean 'h100-llama-3.1-8b'? Shipped: " in str(e.value)


def test_a_profile_is_loaded_from_a_file(
    h100: Profile, fields: dict[str, Any], tmp_path: Path
) -> None:
    file = written(fields, tmp_path)
    assert load_profile(file) == h100
    assert load_profile(str(file)) == h100


def test_all_that_is_wrong_with_a_file_is_named_at_once(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    fields["cost"]["token_s"] = -1.0
    fields["envelope"]["decode"] = 3
    del fields["model"]
    with pytest.raises(ConfigError) as e:
        load_profile(written(fields, tmp_path))
    for place in ("cost.token_s:", "envelope.decode:", "model:"):
        assert place in str(e.value)


def test_kv_tokens_that_do_not_follow_from_the_memory_are_refused(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    fields["kv_tokens"] += 16
    with pytest.raises(ConfigError, match="kv_tokens is 438624, but kv_memory gives 438608"):
        load_profile(written(fields, tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b"", "Invalid JSON"), (b"\xff", "not UTF-8")],
)
def test_a_file_that_cannot_be_read_is_refused(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_profile(file)
