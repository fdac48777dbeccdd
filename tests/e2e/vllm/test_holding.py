"""A policy that holds all requests while nothing runs, on vLLM's own scheduler."""

from __future__ import annotations

import math

import pytest

from batchpolicy.config import Bounds, PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits, Run
from batchpolicy.requests import Status
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_vllm.replay import VllmReplay

pytestmark = pytest.mark.engine

both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
SECOND = FormulaCost(base_s=1.0)


def served(*requests: WorkloadRequest, asynchronous: bool, **parts: object) -> Run:
    params = {"min_waiting": 3, "max_hold_s": 10.0, "hold_idle": True}
    config = PolicyConfig.model_validate(
        {"policy": PolicySpec(name="batch-forming", params=params), **parts}
    )
    limits = EngineLimits(
        max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=100, async_scheduling=asynchronous
    )
    return VllmReplay().replay(Workload("w", requests), config, limits, SECOND)


def request(id: str, at: float, ttl_s: float = math.inf) -> WorkloadRequest:
    return WorkloadRequest(
        id=id, arrival_s=at, prompt_tokens=8, output_tokens=2, max_tokens=2, queue_ttl_s=ttl_s
    )


@both
def test_the_clock_goes_to_the_end_of_the_hold(asynchronous: bool) -> None:
    run = served(request("a", 2.0), asynchronous=asynchronous)
    assert run.first_scheduled_s.tolist() == [12.0]
    assert "forced" not in run.counters


@both
def test_arrivals_come_before_it(asynchronous: bool) -> None:
    requests = [request(name, at) for name, at in (("a", 2.0), ("b", 3.0), ("c", 5.0))]
    run = served(*requests, asynchronous=asynchronous)
    assert run.first_scheduled_s.tolist() == [5.0] * 3


@both
def test_requests_expire_and_are_overdue_before_it(asynchronous: bool) -> None:
    run = served(
        request("a", 2.0),
        request("b", 3.0, ttl_s=4.0),
        asynchronous=asynchronous,
        bounds=Bounds(max_wait_s=6.5),
    )
    assert run.status.tolist() == [int(Status.FINISHED), int(Status.EXPIRED)]
    assert run.first_scheduled_s[0] == 8.5
    assert run.finished_s[1] == 7.0
