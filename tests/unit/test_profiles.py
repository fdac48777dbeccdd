from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.cli import main
from batchpolicy.errors import ConfigError
from batchpolicy.profiles import Profile, load_profile, profile_names
from batchpolicy.profiles.facts import profile_facts
from batchpolicy.step_cost import FormulaCost, StepShape


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


ROOT = Path(__file__).parents[2]
FROM_TABLES = "rtx4090-llama-3.1-8b"
every_profile = pytest.mark.parametrize("name", profile_names())
every_profile_of_the_grid = pytest.mark.parametrize(
    "name", [name for name in profile_names() if name != FROM_TABLES]
)


def test_three_gpus_with_two_models_and_a_desktop_gpu_are_shipped() -> None:
    assert profile_names() == [
        "a100-llama-3.1-70b-tp4",
        "a100-llama-3.1-8b",
        "h100-llama-3.1-70b-tp4",
        "h100-llama-3.1-8b",
        "h200-llama-3.1-70b-tp2",
        "h200-llama-3.1-8b",
        FROM_TABLES,
    ]


@every_profile_of_the_grid
def test_a_shipped_profile_says_what_it_is(name: str) -> None:
    profile = load_profile(name)
    gpu, rest = name.split("-", maxsplit=1)
    size, tp = rest.removeprefix("llama-3.1-"), 1
    if "-tp" in size:
        size, digits = size.split("-tp")
        tp = int(digits)
    assert profile.name == name
    assert profile.hardware.startswith(f"NVIDIA {gpu.upper()} SXM ")
    assert (profile.model, profile.tp) == (f"meta-llama/Meta-Llama-3.1-{size.upper()}", tp)
    assert profile.origin.engine == ("vllm 0.14.0" if gpu == "a100" else "vllm 0.27.0")
    assert profile.origin.licence == "Apache-2.0"
    assert "no CPU or scheduler overhead" in profile.origin.measures
    assert "uncalibrated" in profile.origin.measures
    assert profile.origin.date


@every_profile_of_the_grid
def test_a_shipped_profile_keeps_to_the_errors_that_its_page_allows(name: str) -> None:
    fit = load_profile(name).fit
    for overall, by_kind in (
        (fit.overall, fit.by_kind),
        (fit.held_out, fit.held_out_by_kind),
    ):
        assert list(by_kind) == ["prefill", "decode", "mixed"]
        assert sum(part.rows for part in by_kind.values()) == overall.rows == 177
        for part in (overall, *by_kind.values()):
            assert 0 < part.median <= 0.04
            assert part.median < part.p95 <= 0.11
            assert part.p95 <= part.worst <= 0.21
            assert abs(part.bias) <= 0.02


@every_profile
def test_no_field_of_a_step_makes_it_shorter_when_it_grows(name: str) -> None:
    cost = load_profile(name).cost
    steps = [
        StepShape(prefill_tokens=64, attention=2048.0, sequences=1),
        StepShape(prefill_tokens=8192, attention=1e8, prefill_context=8192, sequences=4),
        StepShape(decodes=1, decode_context=128, sequences=1),
        StepShape(512, 131_072.0, 0, 256, 256 * 4096, 257),
    ]
    for step in steps:
        for field, value in step._asdict().items():
            longer = [cost(step._replace(**{field: value + more})) for more in (1, 100, 10_000)]
            assert [cost(step), *longer] == sorted([cost(step), *longer])
        assert cost(step._replace(prefill_tokens=step.prefill_tokens + 100)) > cost(step)
        assert cost(step._replace(decode_context=step.decode_context + 100)) > cost(step)


@pytest.mark.parametrize(
    ("name", "decode_ms", "prefill_ms", "mixed_ms"),
    [
        ("h100-llama-3.1-8b", 10.35, 43.51, 57.04),
        ("h200-llama-3.1-8b", 7.569, 43.4, 53.18),
        ("a100-llama-3.1-8b", 17.83, 125.2, 153.0),
        ("h100-llama-3.1-70b-tp4", 19.09, 130.2, 149.7),
        ("h200-llama-3.1-70b-tp2", 25.2, 217.7, 242.3),
        ("a100-llama-3.1-70b-tp4", 36.37, 337.2, 374.3),
    ],
)
def test_a_shipped_profile_is_near_rows_of_its_grid(
    name: str, decode_ms: float, prefill_ms: float, mixed_ms: float
) -> None:
    cost = load_profile(name).cost
    # 64 decodes at 1,024; a prompt of 2,048; a prompt of 2,048 beside 128 decodes at 2,048.
    decode = StepShape(decodes=64, decode_context=65_536, sequences=64)
    prefill = StepShape(prefill_tokens=2048, attention=2_097_152.0, sequences=1)
    mixed = StepShape(2048, 2_097_152.0, 0, 128, 262_144, 129)
    assert cost(decode) * 1000 == pytest.approx(decode_ms, rel=0.08)
    assert cost(prefill) * 1000 == pytest.approx(prefill_ms, rel=0.06)
    assert cost(mixed) * 1000 == pytest.approx(mixed_ms, rel=0.06)


@pytest.mark.parametrize(
    ("gpu", "bytes_per_s", "flops"),
    [("h100", 3.35e12, 989e12), ("h200", 4.8e12, 989e12), ("a100", 2.039e12, 312e12)],
)
@pytest.mark.parametrize(
    ("model", "layers", "hidden"), [("llama-3.1-8b", 32, 4096), ("llama-3.1-70b", 80, 8192)]
)
def test_no_profile_is_faster_than_the_data_sheet_of_its_gpu(
    gpu: str, bytes_per_s: float, flops: float, model: str, layers: int, hidden: int
) -> None:
    (name,) = [name for name in profile_names() if name.startswith(f"{gpu}-{model}")]
    profile = load_profile(name)
    cost, memory = profile.cost, profile.kv_memory
    # Weights are read once, KV once a step; 2 bytes of a weight are 2 operations a token. A pair
    # of tokens is a product with its key and one with its value.
    assert cost.base_s + cost.weights_s > memory.weights_bytes / bytes_per_s
    assert cost.decode_context_token_s > memory.bytes_per_token / bytes_per_s
    assert cost.token_s > memory.weights_bytes / flops
    assert cost.attention_pair_s > 4 * layers * hidden / profile.tp / flops


@pytest.mark.parametrize(
    ("name", "usable", "weights", "bytes_per_token", "tokens"),
    [
        # Of each GPU 0.9 * 80 GiB = 77,309,411,328 bytes, or 0.9 * 141 GiB = 136,257,837,465.
        # 8B: 2 bytes * 8,030,261,248 parameters; 2 * 32 layers * 8 heads * 128 * 2 bytes.
        ("h100-llama-3.1-8b", 77_309_411_328, 16_060_522_496, 131_072, 438_608),
        ("a100-llama-3.1-8b", 77_309_411_328, 16_060_522_496, 131_072, 438_608),
        ("h200-llama-3.1-8b", 136_257_837_465, 16_060_522_496, 131_072, 888_352),
        # 70B: 2 bytes * 70,553,706,496 parameters = 141,107,412,992; 327,680 bytes a token.
        # Four GPUs hold a quarter each, two a half.
        ("h100-llama-3.1-70b-tp4", 77_309_411_328, 35_276_853_248, 81_920, 467_216),
        ("a100-llama-3.1-70b-tp4", 77_309_411_328, 35_276_853_248, 81_920, 467_216),
        ("h200-llama-3.1-70b-tp2", 136_257_837_465, 70_553_706_496, 163_840, 378_080),
    ],
)
def test_kv_tokens_are_what_the_memory_of_one_gpu_holds_beside_its_share_of_the_model(
    name: str, usable: int, weights: int, bytes_per_token: int, tokens: int
) -> None:
    profile = load_profile(name)
    memory = profile.kv_memory
    assert int(memory.device_bytes * 0.9) == usable
    assert (memory.usable_frac, memory.weights_bytes) == (0.9, weights)
    assert (memory.reserved_bytes, memory.bytes_per_token) == (3_758_096_384, bytes_per_token)
    blocks = (usable - weights - 3_758_096_384) // (bytes_per_token * 16)
    assert profile.kv_tokens == blocks * 16 == tokens


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


@every_profile_of_the_grid
def test_limits_inside_the_envelope_pass_and_others_are_refused_with_both_figures(
    name: str,
) -> None:
    profile = load_profile(name)
    profile.check_limits(Asked(max_num_seqs=256, max_num_batched_tokens=8192))
    with pytest.raises(ConfigError) as e:
        profile.check_limits(Asked(max_num_seqs=257, max_num_batched_tokens=8193))
    assert f"profile {name!r} says nothing about such steps" in str(e.value)
    assert "max_num_seqs is 257, measured up to 256" in str(e.value)
    assert "max_num_batched_tokens is 8,193, measured up to 8,192" in str(e.value)


@every_profile_of_the_grid
def test_contexts_past_those_measured_are_extended_and_end_at_131072(name: str) -> None:
    # Prompts were measured to 8,192 cached and 16,384 new tokens, decodes to 32,768.
    profile = load_profile(name)
    assert profile.envelope.decode_context_tokens == 32_768
    assert not profile.is_extended(24_576)
    assert profile.is_extended(24_577)
    assert profile.is_extended(131_072)
    with pytest.raises(ConfigError, match=r"131,073 tokens.*131,072"):
        profile.is_extended(131_073)


@every_profile
def test_the_page_of_profiles_says_what_the_profile_does(name: str) -> None:
    profile = load_profile(name)
    assert profile.fit is not None
    fit, bias = profile.fit, [part.bias for part in profile.fit.by_kind.values()]
    cells = [
        f"`{name}`",
        str(profile.tp),
        profile.origin.engine.replace("vllm", "vLLM"),
        f"{fit.overall.median:.1%}",
        f"{fit.overall.p95:.1%}",
        f"{fit.overall.worst:.1%}",
        f"{fit.held_out.median:.1%}",
        f"{fit.held_out.p95:.1%}",
        f"{fit.held_out.worst:.1%}",
        " / ".join(f"{part:+.1%}" for part in bias),
        f"{profile.kv_tokens:,}",
    ]
    page = (ROOT / "docs/profiles.md").read_text()
    assert f"| {' | '.join(cells)} |" in page.splitlines()


def test_the_profile_made_of_tables_says_so_and_ends_where_they_end() -> None:
    profile = load_profile(FROM_TABLES)
    assert (profile.hardware, profile.model) == (
        "NVIDIA GeForce RTX 4090",
        "meta-llama/Llama-3.1-8B",
    )
    assert "LLMServingSim" in profile.origin.data
    assert "no data copied" in profile.origin.licence
    assert "uncalibrated" in profile.origin.measures
    # 2,588 blocks of 16 tokens, as vLLM reported them; nothing was computed.
    assert (profile.kv_tokens, profile.kv_memory) == (2588 * 16, None)
    assert "2,588 blocks of 16 tokens" in profile.kv_source
    profile.check_limits(Asked(max_num_seqs=256, max_num_batched_tokens=2048))
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 2,049, measured up to 2,048"):
        profile.check_limits(Asked(max_num_seqs=256, max_num_batched_tokens=2049))
    assert not profile.is_extended(16_384)
    assert profile.is_extended(16_385)


def test_the_profile_made_of_tables_is_no_faster_than_its_data_sheet() -> None:
    cost = load_profile(FROM_TABLES).cost
    assert isinstance(cost, FormulaCost)
    # 16,060,522,496 bytes of weights at 1,008 GB/s; 131,072 bytes a token of KV, of which the
    # fit gives away a hundredth. A token multiplies by all but embedding and output layer, of
    # 128,256 x 4,096 values each, at 165 TFLOPS.
    assert cost.base_s + cost.weights_s > 16_060_522_496 / 1.008e12
    assert cost.decode_context_token_s > 0.99 * 131_072 / 1.008e12
    assert cost.token_s > (16_060_522_496 - 2 * 2 * 128_256 * 4096) / 165e12


def test_a_profile_file_may_name_tables_beside_it_and_takes_their_envelope(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "attention.csv").write_text(
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
        "16,0,0,0,1\n16,8,0,0,2\n"
        + "".join(f"0,0,{n},{m},{n * m}\n" for n in (1, 2, 4) for m in (16, 32))
        + "".join(
            f"16,{p},{n},{m},{p + n * m}\n" for p in (0, 8) for n in (1, 2) for m in (16, 32)
        )
    )
    layers = "layernorm qkv_proj rotary_emb o_proj gate_up_proj act_fn down_proj".split()
    dense = [
        f"{name},{n},1\n" for name in (*layers, "embedding", "final_layernorm") for n in (1, 20)
    ]
    (tmp_path / "dense.csv").write_text("layer,tokens,time_us\n" + "".join(dense))
    heads = [f"{name},{n},1\n" for name in ("lm_head", "sampler") for n in (1, 4)]
    (tmp_path / "heads.csv").write_text("layer,sequences,time_us\n" + "".join(heads))
    files = {"attention": "attention.csv", "dense": "dense.csv", "per_sequence": "heads.csv"}
    del fields["envelope"], fields["fit"], fields["kv_tokens"], fields["kv_memory"]
    fields["cost"] = files | {"layers": 1}
    profile = load_profile(written(fields, tmp_path))
    # 8 parts, 2 once a step, 2 heads, each 1 us, and 2 decodes at 32.
    shape = StepShape(decodes=2, decode_context=64, sequences=2)
    assert profile.cost(shape) == pytest.approx(76e-6)
    assert profile.trust == "interpolated in tables, uncalibrated"
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 17, measured up to 16"):
        profile.check_limits(Asked(max_num_seqs=4, max_num_batched_tokens=17))
    fields["cost"]["attention"] = "none.csv"
    with pytest.raises(ConfigError, match=r"cost: table .*none\.csv cannot be read: No such file"):
        load_profile(written(fields, tmp_path))


def test_kv_tokens_from_nowhere_are_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    del fields["kv_memory"]
    with pytest.raises(ConfigError, match="kv_tokens is given without its kv_memory or kv_source"):
        load_profile(written(fields, tmp_path))
    fields["kv_source"] = "logged by vLLM"
    assert load_profile(written(fields, tmp_path)).kv_tokens == 438_608
    del fields["kv_tokens"]
    with pytest.raises(ConfigError, match="nothing is guessed: give --kv-tokens"):
        load_profile(written(fields, tmp_path)).kv_tokens  # noqa: B018 - the property raises


def test_the_profiles_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [
        line.split()[0] for line in lines if line.startswith(("a1", "h", "r"))
    ] == profile_names()
    assert main(["profiles", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told] == profile_names()
    assert all(one["kv_tokens"] > 0 and one["origin"]["data"] for one in told)


def test_a_profile_is_shown_with_all_that_it_holds(
    h100: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profiles", "show", h100.name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "meta-llama/Meta-Llama-3.1-8B on NVIDIA H100 SXM 80 GB",
        "fitted with a median error of 1.8%, at most 8.6%",
        "Apache-2.0",
        "438,608",
        "decodes up to 512",
        "1 decode at 1,024 tokens 6.6 ms",
    ):
        assert part in shown
    assert main(["profiles", "show", h100.name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["envelope"]["mixed_decodes"] == 256
    one = StepShape(decodes=1, decode_context=1024, sequences=1)
    assert told["steps_s"]["1 decode at 1,024 tokens"] == h100.cost(one)


def test_steps_outside_the_envelope_are_not_shown(fields: dict[str, Any], tmp_path: Path) -> None:
    fields["envelope"] |= {"decodes": 100, "mixed_decodes": 20, "prefill_tokens": 1000}
    told = profile_facts(load_profile(written(fields, tmp_path)))["steps_s"]
    assert set(told) == {"1 decode at 1,024 tokens", "32 decodes at 1,024", "a prompt of 512"}


def test_a_profile_that_is_not_there_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "h100-lama-3.1-8b"]) == 2
    assert "Did you mean 'h100-llama-3.1-8b'?" in capsys.readouterr().err


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
