"""Reading real runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchpolicy_tuning.calibrate.run_log import (
    RunFacts,
    RunFault,
    metadata_beside,
    read_facts,
    read_run,
)
from tests.unit.tuning.calibrate.batching import write_run

Rows = list[dict[str, Any]]
SHARED = Path(__file__).resolve().parents[5] / "shared/data/latency/validation_vllm"


def rows() -> Rows:
    """Two requests, at 100 s and 101 s of the engine's clock."""
    first = {
        "request_id": "a",
        "input_toks": 10,
        "output_toks": 5,
        "arrival_time": 1e9,
        "queued_ts": 100.0,
        "scheduled_ts": 100.5,
        "first_token_ts": 101.0,
        "last_token_ts": 103.0,
    }
    times = {"queued_ts": 101.0, "scheduled_ts": 101.0, "first_token_ts": 101.25}
    return [first, first | {"request_id": "b", "output_toks": 1, "last_token_ts": 101.25} | times]


def test_latencies_begin_when_the_engine_took_the_request(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, rows()))
    assert [r.arrival_s for r in run.workload.requests] == [0.0, 1.0]
    assert [(r.prompt_tokens, r.output_tokens) for r in run.workload.requests] == [
        (10, 5),
        (10, 1),
    ]
    assert run.latencies.ttft.tolist() == [1.0, 0.25]
    assert run.latencies.e2el.tolist() == [3.0, 0.25]
    # 2 s for the 4 tokens after the first; a single token has no time between tokens.
    assert run.latencies.tpot[0] == 0.5
    assert np.isnan(run.latencies.tpot[1])


def test_a_compressed_run_is_the_same_run(tmp_path: Path) -> None:
    plain = write_run(tmp_path, rows())
    packed = tmp_path / "made_requests.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_run(packed).sha256 == read_run(plain).sha256
    assert read_run(packed).workload.requests == read_run(plain).workload.requests


def change(line: int, **fields: Any) -> Callable[[Rows], None]:
    def changed(rows: Rows) -> None:
        rows[line] |= fields

    return changed


def drop(line: int, field: str) -> Callable[[Rows], None]:
    def dropped(rows: Rows) -> None:
        del rows[line][field]

    return dropped


@pytest.mark.parametrize(
    ("spoil", "line", "said"),
    [
        (change(1, queued_ts=99.5), 2, "the clock goes backwards: queued_ts 99.500000 lies 0.5"),
        (
            change(0, first_token_ts=100.25),
            1,
            "a negative duration: first_token_ts 100.250000 lies 0.250000 s before scheduled_ts",
        ),
        (change(0, scheduled_ts=99.0), 1, "a negative duration: scheduled_ts"),
        (change(0, last_token_ts=100.9), 1, "a negative duration: last_token_ts"),
        (
            change(1, queued_ts=101.25, scheduled_ts=101.25),
            2,
            "the request took no time",
        ),
        (change(1, request_id="a"), 2, "request 'a' stands in line 1 already"),
        (change(0, request_id=7), 1, "request_id is 7, expected a text"),
        (change(1, input_toks=0), 2, "input_toks is 0, expected a whole number, at least 1"),
        (change(1, output_toks=2.5), 2, "output_toks is 2.5"),
        (change(1, output_toks=True), 2, "output_toks is True"),
        (change(0, queued_ts="now"), 1, "queued_ts is 'now', expected seconds"),
        (change(0, queued_ts=float("nan")), 1, "queued_ts is nan, expected finite seconds"),
        (drop(1, "scheduled_ts"), 2, "has no scheduled_ts; expected request_id"),
    ],
)
def test_a_line_that_is_no_request_is_refused_with_its_place(
    spoil: Callable[[Rows], None], line: int, said: str, tmp_path: Path
) -> None:
    spoilt = rows()
    spoil(spoilt)
    path = write_run(tmp_path, spoilt)
    with pytest.raises(RunFault) as e:
        read_run(path)
    assert str(e.value).startswith(f"{path}:{line}: ")
    assert said in str(e.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ": holds no request"),
        (b"\n\n", ": holds no request"),
        (b"\n{}x\n", ":2: is no JSON"),
        (b"[1]\n", ":1: is [1], expected a JSON object"),
        (b"\xff", ": cannot be read"),
        (None, ": cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_run_is_refused(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunFault) as e:
        read_run(path)
    assert f"{path}{said}" in str(e.value)


def test_a_compressed_run_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(b"x" * 1000)[:-8])
    with pytest.raises(RunFault, match="cannot be read"):
        read_run(path)


def test_metadata_are_found_beside_the_run_and_read(tmp_path: Path) -> None:
    run = write_run(tmp_path, rows())
    assert metadata_beside(run) is None
    meta = tmp_path / "made_meta.json"
    meta.write_text('{"kv_cache": {"num_gpu_blocks": 100, "block_size": 32}, "model": null}')
    assert metadata_beside(run) == metadata_beside(run.with_suffix(".jsonl.gz")) == meta
    assert read_facts(meta) == RunFacts(kv_tokens=3200, kv_block_tokens=32)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "the file is [], expected a JSON object"),
        ("{", "cannot be read"),
        ('{"kv_cache": {"num_kv_tokens": -1}}', "kv_cache.num_kv_tokens is -1"),
        ('{"engine_kwargs": {"max_num_seqs": "8"}}', "engine_kwargs.max_num_seqs is '8'"),
        ('{"hardware": {"device_name": 4090}}', "hardware.device_name is 4090"),
        ('{"kv_cache": {"enable_prefix_caching": 1}}', "kv_cache.enable_prefix_caching is 1"),
    ],
)
def test_metadata_that_make_no_sense_are_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "made_meta.json"
    path.write_text(text)
    with pytest.raises(RunFault) as e:
        read_facts(path)
    assert str(e.value).startswith(f"{path}: ")
    assert said in str(e.value)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="the runs are not beside the checkout")
def test_the_means_of_a_published_run_are_those_of_its_page() -> None:
    path = SHARED / "RTX4090_Llama-3.1-8B_requests.jsonl.gz"
    run = read_run(path)
    assert run.latencies.ttft.mean() == pytest.approx(65.457, abs=1e-3)
    assert run.latencies.tpot.mean() == pytest.approx(0.0324, abs=1e-4)
    assert run.latencies.e2el.mean() == pytest.approx(86.578, abs=1e-3)
    meta = metadata_beside(path)
    assert meta is not None
    facts = read_facts(meta)
    assert (facts.kv_tokens, facts.hardware) == (41_408, "NVIDIA GeForce RTX 4090")
    assert json.loads(meta.read_text())["kv_cache"]["num_gpu_blocks"] == 2588
