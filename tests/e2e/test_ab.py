"""The comparison on the real scheduler, without a GPU."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from batchpolicy.cli import main

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here"),
]


def test_the_main_job_shows_who_gains_and_who_pays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "out.json", tmp_path / "out.html"
    arguments = ["ab", "fcfs", "priority", "benefit", "--workload", "chat-and-batch"]
    arguments += ["--load", "0.9", "--pairs", "8", "--requests", "100", "--max-num-seqs", "16"]
    assert (
        main([*arguments, "--jobs", "1", "--quiet", "--json", str(path), "--html", str(page)]) == 0
    )
    told = json.loads(path.read_text())
    assert told["environment"]["engine"].startswith("vLLM")
    (at,) = told["loads"]
    assert [policy["label"] for policy in at["policies"]] == ["fcfs", "priority", "benefit"]
    for policy in at["policies"][1:]:
        chat = next(scope for scope in policy["scopes"] if scope["class"] == "chat")
        assert chat["metrics"]["ttft.p99"]["against_baseline"]["verdict"] == "better"
        paid = {change["scope"] for change in policy["changes"] if change["verdict"] == "worse"}
        assert "batch" in paid
    assert at["title"] in page.read_text()
    for policy in at["recorded"]["policies"]:
        assert max(policy["series"]["waiting"]) > 0
        assert 0.0 < max(policy["series"]["kv_used_frac"]) <= 1.0
        assert all(r["ended_s"] > r["first_token_s"] for r in policy["requests"])
    assert "worse for batch: TTFT" in " ".join(capsys.readouterr().out.split())


def test_the_same_seed_gives_the_same_runs(tmp_path: Path) -> None:
    digests: list[list[str]] = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.json"
        arguments = ["ab", "fcfs", "benefit", "--workload", "noisy-tenant", "--load", "1.1"]
        arguments += ["--pairs", "2", "--requests", "60", "--max-num-seqs", "8", "--jobs", "1"]
        assert main([*arguments, "--quiet", "--json", str(path)]) == 0
        told = json.loads(path.read_text())
        digests.append(
            [run["sha256"] for policy in told["loads"][0]["policies"] for run in policy["runs"]]
        )
    assert digests[0] == digests[1]


def test_a_request_larger_than_the_pool_ends_before_any_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["ab", "fcfs", "benefit", "--workload", "noisy-tenant", "--load", "1"]
    assert main([*arguments, "--kv-tokens", "1024", "--pairs", "2", "--quiet"]) == 2
    assert "exceed the KV pool of 1,024" in capsys.readouterr().err
