from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from batchpolicy.errors import ConfigError
from batchpolicy.profiles import load_profile, profile_names
from batchpolicy.step_cost import FormulaCost, StepShape
from batchpolicy_tuning.fit_profile import fit_cost, fit_profile, main
from batchpolicy_tuning.step_grid import Grid, Row, monotone, read_grid

LLAMA = "meta-llama/Meta-Llama-3.1-8B"
SHARED = (
    Path(__file__).resolve().parents[4] / "shared/data/latency/aiconfigurator_step_grid.csv.gz"
)
TRUE = FormulaCost(
    weights_s=5e-3,
    token_s=3e-5,
    sharpness=1.7,
    attention_pair_s=9e-10,
    prefill_context_token_s=3e-8,
    decode_context_token_s=5e-8,
    sequence_s=4e-6,
)


def grid_rows(cost: FormulaCost = TRUE) -> list[Row]:
    """A grid that the formula describes without error."""
    sizes = [("prefill", n, prefix, 0, 0) for n in (16, 256, 2048, 8192) for prefix in (0, 4096)]
    sizes += [("decode", 0, 0, n, context) for n in (1, 16, 256) for context in (128, 2048)]
    sizes += [("mixed", n, 0, 32, context) for n in (128, 4096) for context in (512, 2048)]
    shapes = [Row(*size, latency_s=1.0) for size in sizes]
    return [row._replace(latency_s=cost(row.shape)) for row in shapes]


def write_grid(file: Path, rows: list[Row]) -> Path:
    with gzip.open(file, "wt", newline="") as out:
        table = csv.writer(out)
        table.writerow(
            "system model tp backend backend_version kind prefill_tokens prefix_tokens "
            "decode_seqs context_tokens latency_ms".split()
        )
        for row in rows:
            table.writerow(
                ["h100_sxm", LLAMA, 1, "vllm", "1.2.3", *row[:5], repr(row.latency_s * 1000)]
            )
    return file


@pytest.mark.parametrize("base_s", [0.0, 4e-3])
def test_a_fit_to_the_formula_itself_finds_its_coefficients(base_s: float) -> None:
    true = TRUE.model_copy(update={"base_s": base_s})
    rows = grid_rows(true)
    cost = fit_cost(rows, np.array([row.latency_s for row in rows]))
    assert cost.model_dump() == pytest.approx(true.model_dump(), rel=1e-3)


def test_a_coefficient_that_the_rows_speak_against_is_0_and_no_small_number() -> None:
    # A negative price per sequence would fit best.
    rows = [
        row._replace(latency_s=row.latency_s - 5e-6 * row.shape.sequences) for row in grid_rows()
    ]
    cost = fit_cost(rows, np.array([row.latency_s for row in rows]))
    assert cost.sequence_s == 0.0


def test_the_bias_of_a_fit_keeps_its_sign_and_the_worst_row_is_named() -> None:
    rows = grid_rows()
    rows[-1] = rows[-1]._replace(latency_s=rows[-1].latency_s * 1.2)
    grid = Grid(tuple(rows), "vllm 1.2.3", "made up", "Apache-2.0", "0" * 64)
    profile = fit_profile(grid, name="mine", system="h100_sxm", model=LLAMA, tp=1)
    assert profile.fit.by_kind["mixed"].bias < 0 < profile.fit.by_kind["mixed"].worst
    assert "Farthest from its row, by -" in profile.origin.notes
    assert "4,096 new tokens, 32 decodes at 2,048 tokens." in profile.origin.notes


def test_the_held_out_error_of_such_a_grid_is_nothing_and_its_envelope_its_corners() -> None:
    grid = Grid(tuple(grid_rows()), "vllm 1.2.3", "made up", "Apache-2.0", "0" * 64)
    profile = fit_profile(grid, name="mine", system="h100_sxm", model=LLAMA, tp=1)
    assert profile.fit.overall.worst == profile.fit.held_out.worst == 0.0
    assert profile.envelope.model_dump() == {
        "prefill_tokens": 8192,
        "decodes": 256,
        "mixed_prefill_tokens": 4096,
        "mixed_decodes": 32,
        "prefill_context_tokens": 12_288,
        "decode_context_tokens": 2048,
    }


def test_a_fall_is_levelled_to_the_middle_and_the_rest_stays() -> None:
    rows = [Row("decode", 0, 0, n, 128, ms / 1000) for n, ms in ((1, 5), (2, 8), (4, 6), (8, 9))]
    assert monotone(rows).tolist() == pytest.approx([0.005, 0.007, 0.007, 0.009])


def test_kinds_and_sizes_that_cannot_be_compared_do_not_level_each_other() -> None:
    rows = [
        Row("decode", 0, 0, 8, 128, 0.009),
        Row("decode", 0, 0, 4, 512, 0.007),
        Row("prefill", 16, 0, 0, 0, 0.008),
        Row("mixed", 16, 0, 8, 128, 0.004),
    ]
    assert monotone(rows).tolist() == [row.latency_s for row in rows]


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        (Row("prefill", 100, 50, 0, 0, 1.0), StepShape(100, 100 * (50 + 50), 50, 0, 0, 1)),
        (Row("decode", 0, 0, 3, 70, 1.0), StepShape(0, 0.0, 0, 3, 210, 3)),
        # Two whole prompts of 512: 2 * 512 * 256 pairs.
        (Row("mixed", 1024, 0, 8, 512, 1.0), StepShape(1024, 262_144.0, 0, 8, 4096, 10)),
        # A quarter of a prompt of 512, at a mean depth of 256: 128 * (192 + 64) pairs.
        (Row("mixed", 128, 0, 8, 512, 1.0), StepShape(128, 32_768.0, 192, 8, 4096, 9)),
    ],
)
def test_a_row_becomes_the_shape_of_its_step(row: Row, shape: StepShape) -> None:
    assert row.shape == shape


def test_the_command_writes_the_same_profile_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = write_grid(tmp_path / "grid.csv.gz", grid_rows())
    out = tmp_path / "mine.json"
    args = [str(grid), "--system", "h100_sxm", "--model", LLAMA, "--out", str(out)]
    assert main(args) == 0
    first = out.read_bytes()
    assert main(args) == 0
    assert out.read_bytes() == first
    assert "held out" in capsys.readouterr().out
    profile = load_profile(out)
    assert (profile.name, profile.origin.engine) == ("mine", "vllm 1.2.3")
    assert profile.origin.date is None


def test_a_combination_that_is_not_in_the_grid_is_refused_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = write_grid(tmp_path / "grid.csv.gz", grid_rows())
    out = tmp_path / "mine.json"
    args = [str(grid), "--system", "h300_sxm", "--model", LLAMA, "--out", str(out)]
    assert main(args) == 2
    assert f"Nearest: h100_sxm {LLAMA} 1 vllm" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "wrong", [Row("decode", 0, 0, 1, 128, 0.0), Row("mixed", 128, 0, 8, 0, 0.01)]
)
def test_a_row_that_is_no_step_is_refused(wrong: Row, tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid.csv.gz", [*grid_rows(), wrong])
    with pytest.raises(ConfigError, match="a row that is no step"):
        read_grid(grid, "h100_sxm", LLAMA, 1, "vllm")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("", "the file is empty"),
        ("system,model\nh100_sxm,x\n", "no column 'tp'"),
    ],
)
def test_a_file_that_is_no_grid_is_refused(content: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "grid.csv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_grid(file, "h100_sxm", LLAMA, 1, "vllm")


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="the step grid is not beside the checkout")
@pytest.mark.parametrize("name", [name for name in profile_names() if name[0] in "ah"])
def test_a_shipped_profile_is_what_the_grid_gives(name: str) -> None:
    shipped = load_profile(name)
    system, engine = f"{name.split('-')[0]}_sxm", shipped.origin.engine.split()[0]
    grid = read_grid(SHARED, system, shipped.model, shipped.tp, engine)
    again = fit_profile(
        grid,
        name=name,
        system=system,
        model=shipped.model,
        tp=shipped.tp,
        day=shipped.origin.date,
    )
    assert again.cost.model_dump() == pytest.approx(shipped.cost.model_dump(), rel=1e-3)
    for part in ("overall", "held_out"):
        told, found = (getattr(p.fit, part).model_dump() for p in (shipped, again))
        assert found == pytest.approx(told, abs=1e-3)
    for part in ("hardware", "kv_tokens", "kv_memory", "envelope", "origin"):
        assert getattr(again, part) == getattr(shipped, part)
    # What the KV cache holds, decodes were measured to read in one step.
    assert shipped.kv_tokens <= max(row.shape.decode_context for row in grid.rows)
