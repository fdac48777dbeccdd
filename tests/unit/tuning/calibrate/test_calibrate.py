"""The whole command, on runs that an engine of known cost recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchpolicy.cli import main
from batchpolicy.profiles import MetricErrors, load_profile
from batchpolicy.step_cost import FormulaCost
from batchpolicy_tuning.calibrate.accuracy import Latencies, errors
from batchpolicy_tuning.calibrate.cli import parse_limit
from batchpolicy_tuning.fit_profile import to_json
from tests.unit.tuning.calibrate.batching import BASE, recorded, workload, write_facts, write_run

HERE = "tests.unit.tuning.calibrate.batching"
SHARED = Path(__file__).resolve().parents[5] / "shared/data/latency/validation_vllm"
Call = Callable[..., int]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A profile of the base cost, of another GPU than the run."""
    fields = load_profile("h100-llama-3.1-8b").model_dump(mode="json")
    path = tmp_path / "base.json"
    path.write_text(json.dumps(fields | {"name": "base", "cost": BASE.model_dump()}))
    return path


@pytest.fixture
def calibrate(tmp_path: Path, base: Path) -> Call:
    def call(*more: str, rows: list[dict[str, Any]], facts: dict[str, Any] | None = None) -> int:
        run = write_run(tmp_path, rows)
        write_facts(tmp_path, facts)
        asked = ("--from", str(run), "--profile", str(base), "--engine", f"{HERE}:BatchingEngine")
        return main(["calibrate", *asked, *more])

    return call


def slow(scale: float = 1.3, overhead_s: float = 4e-3) -> FormulaCost:
    return BASE.adjusted(scale, overhead_s)


@pytest.mark.parametrize(("scale", "overhead_s"), [(1.3, 4e-3), (0.8, 2e-3), (1.6, 0.0)])
def test_a_known_scale_and_overhead_are_found_again(
    scale: float,
    overhead_s: float,
    calibrate: Call,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "mine.json"
    # At a low load, where neither number hides behind waiting times.
    rows = recorded(slow(scale, overhead_s), workload(gap_s=1.5))
    assert calibrate("-o", str(out), "--json", "--quiet", rows=rows) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    told = json.loads(captured.out)
    assert told["scale"] == pytest.approx(scale, rel=0.01)
    assert told["overhead_s"] == pytest.approx(overhead_s, abs=2e-4)
    # A third of the 90 requests is seen, the others are judged.
    assert (told["fitted_requests"], told["held_out_requests"]) == (30, 60)
    for metric in ("e2el", "ttft", "tpot"):
        assert abs(told["errors"]["held_out"][metric]["mean"]) < 0.01
    assert abs(told["errors"]["uncalibrated"]["e2el"]["mean"]) > 0.05


def test_the_profile_says_where_it_comes_from_and_is_loaded_again(
    calibrate: Call, tmp_path: Path, base: Path
) -> None:
    out = tmp_path / "mine.json"
    rows = recorded(slow())
    assert calibrate("-o", str(out), rows=rows) == 0
    profile, origin = load_profile(out), load_profile(base)
    assert (profile.name, profile.hardware, profile.model) == ("mine", "A GPU", "some/model")
    assert (profile.kv_tokens, profile.kv_source) == (160_000, "read from the metadata of the run")
    assert profile.envelope == origin.envelope
    assert profile.origin.date is None
    assert "made_requests.jsonl under vllm 0.19.0" in profile.origin.measures
    made = profile.calibration
    assert made is not None
    assert (made.base, made.engine, made.run) == ("base", "batching 1", "made_requests.jsonl")
    assert len(made.run_sha256) == 64
    assert profile.cost == origin.cost.adjusted(made.scale, made.overhead_s)
    assert profile.trust.startswith("calibrated to made_requests.jsonl: mean E2E off by ")
    assert to_json(profile) == out.read_text()
    # The same once more: the file is the same.
    again = tmp_path / "again" / "mine.json"
    again.parent.mkdir()
    assert calibrate("-o", str(again), "-q", rows=rows) == 0
    assert again.read_bytes() == out.read_bytes()


def test_latencies_of_requests_that_are_judged_take_no_part_in_the_fit(
    calibrate: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = recorded(slow())
    assert calibrate("--json", "-q", rows=rows) == 0
    before = json.loads(capsys.readouterr().out)
    # As if the server had slowed down for the requests after the 30th.
    for row in rows[30:]:
        row["last_token_ts"] += 2.0
    assert calibrate("--json", "-q", "--limit", "500%", rows=rows) == 0
    after = json.loads(capsys.readouterr().out)
    assert (after["scale"], after["overhead_s"]) == (before["scale"], before["overhead_s"])
    assert after["errors"]["held_out"]["e2el"]["mean"] < -0.1


def test_the_table_shows_what_is_measured_and_both_errors(
    calibrate: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate("--fit-on", "40", rows=recorded(slow())) == 0
    out, err = capsys.readouterr()
    assert "base calibrated to requests 1 to 40 of made_requests.jsonl: scale 1." in out
    assert "Errors on requests 41 to 90" in out
    for name in ("E2E", "TTFT", "TPOT"):
        (line,) = [line for line in out.splitlines() if line.startswith(name)]
        assert line.count("%") == 8
    assert "Profile base is of the GPU 'NVIDIA H100 SXM 80 GB', the run of 'A GPU'" in " ".join(
        out.split()
    )
    assert err.startswith("replay 2: scale 1.0000, overhead 0.000 ms")


def test_a_fit_that_is_off_by_more_than_the_limit_is_refused_and_writes_nothing(
    calibrate: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.json"
    rows = recorded(slow())
    for row in rows[30:]:
        row["last_token_ts"] += 2.0
    before = sorted(tmp_path.iterdir())
    assert calibrate("-o", str(out), "-q", rows=rows) == 5
    captured = capsys.readouterr()
    assert "calibration refused: mean E2E is off by -" in captured.err
    assert f"the limit is 10.0%; {out} is not written" in captured.err
    assert "TPOT" in captured.out
    assert set(tmp_path.iterdir()) - set(before) == {
        tmp_path / "made_requests.jsonl",
        tmp_path / "made_meta.json",
    }


def test_kv_tokens_that_nobody_says_are_asked_for(
    calibrate: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, rows = tmp_path / "mine.json", recorded(slow())
    assert calibrate("-o", str(out), rows=rows, facts={"kv_cache": {}}) == 2
    assert "KV tokens: give --kv-tokens" in capsys.readouterr().err
    assert not out.exists()
    assert (
        calibrate("-o", str(out), "--kv-tokens", "160000", rows=rows, facts={"kv_cache": {}}) == 0
    )
    assert load_profile(out).kv_source == "given with --kv-tokens"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--limit", "10"), "--limit: '10' is no percentage; write 10%"),
        (("-o", "mine.yaml"), "a profile's file ends in .json"),
        (("-o", "/nowhere/mine.json"), "no folder '/nowhere'"),
        (("--fit-on", "80"), "90 requests, 80 of them for the fit: expected at least 20"),
        (("--engine", "lihgt"), "Did you mean 'light'?"),
        (("--engine", f"{HERE}:LosingEngine"), "without serving them, the first 'r89'"),
        (("--meta", "none.json"), "none.json: cannot be read: No such file"),
    ],
)
def test_what_cannot_be_done_is_exit_2_with_the_reason(
    more: tuple[str, ...], said: str, calibrate: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(*more, rows=recorded(slow())) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_is_no_run_leaves_what_stood_there(
    calibrate: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.json"
    out.write_text("mine")
    rows = recorded(slow())
    rows[50]["queued_ts"] = 0.0
    assert calibrate("-o", str(out), rows=rows) == 2
    assert "made_requests.jsonl:51: the clock goes backwards" in capsys.readouterr().err
    assert calibrate("-o", str(out), rows=[]) == 2
    assert "holds no request" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_errors_are_shares_of_what_was_measured_worked_out_by_hand() -> None:
    real = Latencies.of(np.array([1.0, 2.0]), np.array([4.0, 6.0]), np.array([4, 1]))
    guess = Latencies.of(np.array([1.5, 2.0]), np.array([4.0, 9.0]), np.array([4, 1]))
    found = errors(real, guess)
    # Means 5 and 6.5; medians the same; p95 5.9 and 8.75; requests off by 0 and 50%.
    assert found["e2el"] == MetricErrors(
        mean=0.3, p50=0.3, p95=round(8.75 / 5.9 - 1, 4), mape=0.25
    )
    assert found["ttft"].mape == 0.25
    # Only the first has tokens after its first one: 1 s each, replayed 2.5 / 3 s.
    assert found["tpot"].mean == round(2.5 / 3 - 1, 4)


def test_under_load_latencies_are_met_even_where_the_two_numbers_are_hard_to_tell_apart(
    calibrate: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate("--json", "-q", rows=recorded(slow(1.6, 0.0))) == 0
    told = json.loads(capsys.readouterr().out)
    for metric in ("e2el", "tpot"):
        assert abs(told["errors"]["held_out"][metric]["mean"]) < 0.01
    assert told["errors"]["held_out"]["e2el"]["mape"] < 0.02


@pytest.mark.parametrize(("text", "part"), [("10%", 0.1), ("0.5%", 0.005), ("0%", 0.0)])
def test_a_limit_is_a_percentage(text: str, part: float) -> None:
    assert parse_limit(text) == pytest.approx(part)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the runs are not beside the checkout")
def test_a_published_run_is_met_within_the_figures_of_the_design(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = SHARED / "RTX4090_Llama-3.1-8B_requests.jsonl.gz"
    asked = ("--from", str(run), "--profile", "rtx4090-llama-3.1-8b", "--json", "-q")
    assert main(["calibrate", *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["fitted_requests"], told["held_out_requests"]) == (100, 200)
    held_out = told["errors"]["held_out"]
    assert abs(held_out["e2el"]["mean"]) <= 0.04
    assert abs(held_out["ttft"]["mean"]) <= 0.05
    assert abs(held_out["tpot"]["mean"]) <= 0.03
    assert abs(told["errors"]["uncalibrated"]["e2el"]["mean"]) <= 0.08
