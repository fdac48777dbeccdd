"""Requests that need a LoRA adapter: vLLM's own limit, under every policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.cli import main
from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits, Run
from batchpolicy.errors import WorkloadError
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_vllm import seams
from batchpolicy_vllm.replay import VllmReplay
from tests.support.vllm_replays import (
    BENEFIT,
    COST,
    EVERY_LIMITS,
    FCFS,
    Served,
    assert_no_fault,
    free_blocks,
    random_workload,
    seeds,
    serve,
)

pytestmark = pytest.mark.engine

LIMITS = EngineLimits(
    max_num_seqs=8,
    max_num_batched_tokens=256,
    kv_blocks=400,
    kv_block_tokens=16,
    max_model_len=512,
    prefix_cache=True,
    max_loras=1,
)
ADAPTERS = 4

every_order = pytest.mark.parametrize("config", [None, BENEFIT], ids=["stock", "benefit"])


def request(id: str, arrival_s: float, lora: str, **facts: Any) -> WorkloadRequest:
    given = {"prompt_tokens": 40, "output_tokens": 20, "max_tokens": 20, **facts}
    return WorkloadRequest(id=id, arrival_s=arrival_s, lora=lora, **given)


def replayed(
    *requests: WorkloadRequest, config: PolicyConfig | None = None, limits: EngineLimits = LIMITS
) -> Run:
    return VllmReplay().replay(Workload("w", requests), config, limits, COST)


# One step of 20 decodes takes 10.1 ms or a little more, so that a runs for some 0.2 s.
THREE = (
    request("a", 0.0, "french"),
    request("b", 0.05, "german"),
    request("base", 0.1, ""),
    request("a2", 0.1, "french"),
)


@every_order
def test_a_request_whose_adapter_has_no_place_waits_and_the_others_pass(
    config: PolicyConfig | None,
) -> None:
    run = replayed(*THREE, config=config)
    a, b, base, a2 = range(4)
    for at_once in (base, a2):
        assert run.first_scheduled_s[at_once] == pytest.approx(0.1, abs=0.02)
    # Once the last request with the other adapter has ended.
    assert run.first_scheduled_s[b] == max(run.finished_s[a], run.finished_s[a2])
    assert run.status.tolist() == [Status.FINISHED] * 4


@every_order
def test_many_whose_adapter_has_no_place_do_not_hide_one_that_could_start(
    config: PolicyConfig | None,
) -> None:
    crowd = (request(f"b{i}", 0.01, "german") for i in range(40))
    run = replayed(request("a", 0.0, "french"), *crowd, request("base", 0.01, ""), config=config)
    assert run.first_scheduled_s[-1] == pytest.approx(0.01, abs=0.02)


def test_nobody_is_displaced_for_a_request_whose_adapter_has_no_place() -> None:
    seated = (request(f"a{i}", 0.0, "french", priority=9) for i in range(8))
    urgent = request("b", 0.05, "german", priority=-9)
    run = replayed(*seated, urgent, config=BENEFIT)
    assert run.preemptions.sum() == 0
    assert run.first_scheduled_s[-1] == run.finished_s[:-1].max()


@every_order
def test_with_a_place_for_each_adapter_nobody_waits(config: PolicyConfig | None) -> None:
    run = replayed(*THREE, config=config, limits=replace(LIMITS, max_loras=2))
    arrivals = [r.arrival_s for r in THREE]
    assert run.first_scheduled_s.tolist() == pytest.approx(arrivals, abs=0.02)


@every_order
def test_a_prefix_is_found_by_requests_of_the_same_adapter_alone(
    config: PolicyConfig | None,
) -> None:
    shared = {"prefix_id": "p", "prefix_tokens": 40, "prompt_tokens": 48}
    run = replayed(
        request("base", 0.0, "", **shared),
        request("french", 1.0, "french", **shared),
        request("german", 2.0, "german", **shared),
        request("german again", 3.0, "german", **shared),
        request("base again", 4.0, "", **shared),
        request("french again", 5.0, "french", **shared),
        config=config,
    )
    # Whole blocks of 16: 32 of the 40.
    assert run.cached_tokens.tolist() == [0, 0, 0, 32, 32, 32]


def at_once(served: Served) -> int:
    """Most adapters of the requests with a seat."""
    adapters = {r.id: r.lora for r in served.run.workload.requests}
    return max(len({adapters[i] for i in seated} - {""}) for seated in served.seated)


def in_one_step(served: Served) -> int:
    """Most adapters of the requests that one step computes."""
    adapters = {r.id: r.lora for r in served.run.workload.requests}
    return max(len({adapters[i] for i in step.tokens} - {""}) for step in served.steps)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("config", [None, FCFS, BENEFIT], ids=["stock", "fcfs", "benefit"])
@pytest.mark.parametrize("seed", seeds(30))
def test_under_no_policy_do_more_adapters_run_than_may_and_every_request_is_served(
    seed: int, config: PolicyConfig | None, asynchronous: bool
) -> None:
    limits = replace(EVERY_LIMITS[seed % len(EVERY_LIMITS)], max_loras=1 + seed % 3)
    served = serve(
        random_workload(seed, loras=ADAPTERS),
        limits,
        config,
        base=seams.AsyncScheduler if asynchronous else None,
        asynchronous=asynchronous,
    )
    assert in_one_step(served) <= limits.max_loras
    # With two steps in flight, a request whose last token is under way has a seat still, and
    # up to 0.32 its adapter's place is free.
    assert asynchronous or at_once(served) <= limits.max_loras
    for row, r in enumerate(served.run.workload.requests):
        if served.run.status[row] == Status.FINISHED:
            assert served.run.output_tokens[row] == min(r.output_tokens, r.max_tokens)
        else:
            assert served.run.status[row] == Status.ABORTED
            assert served.run.finished_s[row] >= r.cancel_at_s
    assert free_blocks(served.scheduler) == limits.kv_blocks
    assert_no_fault(served.run.counters)


def test_adapters_without_a_limit_are_refused_with_what_to_do() -> None:
    with pytest.raises(WorkloadError) as error:
        replayed(*THREE, limits=replace(LIMITS, max_loras=None))
    said = str(error.value)
    assert "LoRA adapters (2: 'french', 'german')" in said
    assert "--max-loras N" in said


def test_a_limit_changes_nothing_where_no_request_names_an_adapter() -> None:
    found = [
        serve(random_workload(3), replace(LIMITS, max_loras=most), BENEFIT).run.digest()
        for most in (None, 1)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("most", [None, 1, 3])
def test_the_scheduler_tells_its_limit(most: int | None) -> None:
    scheduler = serve(random_workload(3), replace(LIMITS, max_loras=most)).scheduler
    assert seams.max_loras(scheduler) == most


def test_ab_takes_the_limit_and_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {
            "id": f"r{i}",
            "arrival_s": i / 10,
            "prompt_tokens": 40,
            "output_tokens": 10,
            "max_tokens": 10,
            "priority": i % 2,
            "lora": ("french", "german", "")[i % 3],
        }
        for i in range(60)
    ]
    trace, told = tmp_path / "adapters.jsonl", tmp_path / "told.json"
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    asked = ["ab", "fcfs", "priority", "--engine", "vllm", "--workload", str(trace), "-q"]
    asked += ["--load", "0.9", "--pairs", "2", "--jobs", "1", "--max-num-seqs", "4"]
    assert main(asked) == 2
    assert "LoRA adapters (2: 'french', 'german')" in " ".join(capsys.readouterr().err.split())
    assert main([*asked, "--max-loras", "1", "--json", str(told)]) == 0
    assert "1 LoRA adapter at once" in " ".join(capsys.readouterr().out.split())
    assert json.loads(told.read_text(encoding="utf-8"))["limits"]["max_loras"] == 1
