"""What a replay ends in the queue by itself, and in which order ends are told."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from batchpolicy.config import LimitSettings, PolicyConfig, Queue
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.errors import WorkloadError
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from batchpolicy_vllm import seams
from batchpolicy_vllm.replay import VllmReplay
from batchpolicy_vllm.seams.names import FinishReason
from tests.support.vllm_replays import BENEFIT, COST, FCFS, STRICT_PRIORITY, TIGHT, random_workload

pytestmark = pytest.mark.engine

ONE_SEAT = replace(TIGHT, max_num_seqs=1, kv_blocks=200)


def one(id: str, prompt: int, output: int, **facts: Any) -> WorkloadRequest:
    return WorkloadRequest(
        id=id,
        arrival_s=facts.pop("arrival_s", 0.0),
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output,
        **facts,
    )


def on_both(
    requests: tuple[WorkloadRequest, ...], limits: EngineLimits, config: PolicyConfig | None
) -> Run:
    """The run on vLLM, which the light engine's is equal to."""
    workload = Workload("w", requests)
    run = VllmReplay().replay(workload, config, limits, COST)
    assert LightEngine().replay(workload, config, limits, COST).digest() == run.digest()
    return run


@pytest.mark.parametrize("config", [None, FCFS, STRICT_PRIORITY, BENEFIT])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_waits_past_its_time_ends_in_the_orders_of_vllm_as_well(
    config: PolicyConfig | None, asynchronous: bool
) -> None:
    # A prompt of 32 tokens takes 13.2 ms, and each of 100 tokens behind it 10.1 ms.
    requests = (
        one("a", 32, 101),
        one("b", 32, 5, arrival_s=0.1, queue_ttl_s=0.5),
        one("c", 32, 5, arrival_s=0.2, queue_ttl_s=5.0),
    )
    limits = replace(ONE_SEAT, async_scheduling=asynchronous)
    run = (
        VllmReplay().replay(Workload("w", requests), config, limits, COST)
        if asynchronous
        else on_both(requests, limits, config)
    )
    assert run.status.tolist() == [Status.FINISHED, Status.EXPIRED, Status.FINISHED]
    assert 0.6 <= run.finished_s[1] <= 0.6 + 3 * 0.0101
    assert run.output_tokens.tolist() == [101, 0, 5]
    assert run.first_scheduled_s[2] >= run.finished_s[0] - 0.0101


def test_a_time_that_nobody_exceeds_leaves_every_step_as_it_was() -> None:
    plain = random_workload(3)
    limited = Workload(plain.name, tuple(replace(r, queue_ttl_s=1e6) for r in plain.requests))
    steps: list[list[StepRecord]] = [[], []]
    for workload, seen in zip((plain, limited), steps, strict=True):
        VllmReplay().replay(workload, None, TIGHT, COST, observer=seen.append)
    first, second = ([(s.start_s, list(s.tokens.items())) for s in seen] for seen in steps)
    assert first == second


@pytest.mark.parametrize("large", [one("a", 500, 1, priority=-9), one("a", 300, 100, priority=-9)])
def test_under_a_policy_what_can_never_fit_is_refused_and_blocks_nobody(
    large: WorkloadRequest,
) -> None:
    limits = replace(TIGHT, kv_blocks=20)
    run = on_both((large, one("b", 20, 3)), limits, BENEFIT)
    assert run.status.tolist() == [Status.REFUSED, Status.FINISHED]
    assert run.finished_s[0] <= 0.0121
    with pytest.raises(WorkloadError, match="can never run"):
        VllmReplay().replay(run.workload, FCFS, limits, COST)


def test_a_prompt_that_goes_whole_starts_under_a_limit_below_it() -> None:
    limits = replace(TIGHT, chunked_prefill=False, max_model_len=64, kv_blocks=100)
    low = BENEFIT.model_copy(
        update={"limits": LimitSettings(max_num_batched_tokens=16), "queue": Queue(ttl_s=math.inf)}
    )
    run = on_both((one("a", 50, 3), one("b", 10, 3)), limits, low)
    assert run.status.tolist() == [Status.FINISHED, Status.FINISHED]


def test_limits_of_one_replay_do_not_hold_in_the_next() -> None:
    low = FCFS.model_copy(
        update={
            "limits": LimitSettings(max_num_seqs=2, max_num_batched_tokens=32, prefill_chunk=16)
        }
    )
    workload, engine = random_workload(5), VllmReplay()
    before = engine.replay(workload, None, TIGHT, COST)
    assert engine.replay(workload, low, TIGHT, COST).digest() != before.digest()
    assert engine.replay(workload, None, TIGHT, COST).digest() == before.digest()


def test_requests_that_end_in_one_step_are_told_in_the_order_of_their_outputs() -> None:
    def output(id: str, reason: Any) -> SimpleNamespace:
        return SimpleNamespace(
            request_id=id, new_token_ids=[1], finish_reason=reason, stop_reason=None
        )

    stop = FinishReason.LENGTH
    names = [f"r{i}" for i in range(50)]
    outputs = {0: SimpleNamespace(outputs=[output(n, stop) for n in names] + [output("x", None)])}
    scheduler = SimpleNamespace(finished_req_ids={*names, "gone", "away"})
    assert seams.ended(scheduler, outputs) == [*names, "away", "gone"]
    assert seams.ended(SimpleNamespace(finished_req_ids={"r7"}), outputs) == ["r7"]
    assert seams.ended(SimpleNamespace(finished_req_ids=set()), outputs) == []
