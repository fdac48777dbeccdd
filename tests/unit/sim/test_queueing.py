"""The light engine as the textbook's queues: one token a step and steps of equal length."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine

MEAN_STEPS = 20
STEP_S = 1.0 / MEAN_STEPS
"""Service takes 1 s on average, in steps so short that it ends at nearly any time."""


def poisson(count: int, rate: float, seed: int) -> Workload:
    """Poisson arrivals with geometric numbers of tokens: exponential service, nearly."""
    rng = random.Random(seed)
    now_s = 0.0
    requests: list[WorkloadRequest] = []
    for i in range(count):
        now_s += rng.expovariate(rate)
        steps = 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / MEAN_STEPS))
        requests.append(
            WorkloadRequest(
                id=f"r{i}", arrival_s=now_s, prompt_tokens=1, output_tokens=steps, max_tokens=steps
            )
        )
    return Workload("poisson", tuple(requests))


def served(workload: Workload, servers: int, watch: bool = False) -> tuple[Run, list[StepRecord]]:
    limits = EngineLimits(
        max_num_seqs=servers,
        max_num_batched_tokens=64,
        kv_blocks=100_000,
        max_model_len=1_000_000,
    )
    steps: list[StepRecord] = []
    cost = FormulaCost(base_s=STEP_S)
    run = LightEngine().replay(
        workload, None, limits, cost, observer=steps.append if watch else None
    )
    return run, steps


def sojourn_s(run: Run) -> float:
    arrival_s = np.array([r.arrival_s for r in run.workload.requests])
    return float((run.finished_s - arrival_s).mean())


def waited_s(run: Run) -> float:
    arrival_s = np.array([r.arrival_s for r in run.workload.requests])
    return float((run.first_scheduled_s - arrival_s).mean())


def starts_one_by_one(workload: Workload, servers: int) -> list[float]:
    """When each request starts, by going through every step of every server."""
    left = [0] * servers
    starts: list[float] = []
    requests = list(workload.requests)
    now_s = requests[0].arrival_s
    while requests:
        for server in range(servers):
            if not left[server] and requests and requests[0].arrival_s <= now_s:
                left[server] = requests.pop(0).output_tokens
                starts.append(now_s)
        if any(left):
            left = [max(n - 1, 0) for n in left]
            now_s += STEP_S
        elif requests:
            now_s = requests[0].arrival_s
    return starts


@pytest.mark.parametrize("servers", [1, 3])
def test_seats_are_servers_with_one_queue(servers: int) -> None:
    workload = poisson(3_000, 0.9 * servers, seed=servers)
    run, _ = served(workload, servers)
    assert run.first_scheduled_s.tolist() == starts_one_by_one(workload, servers)


# A sample's own error is some 3%, as waits are alike for hundreds of requests.
@pytest.mark.slow
def test_one_seat_is_the_queue_m_m_1() -> None:
    run, _ = served(poisson(150_000, 0.8, seed=1), 1)
    assert sojourn_s(run) == pytest.approx(1.0 / (1.0 - 0.8), rel=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [2, 8])
def test_more_seats_are_the_queue_of_erlang(servers: int) -> None:
    rate = 0.8 * servers
    run, _ = served(poisson(200_000, rate, seed=servers), servers)
    terms = [rate**k / math.factorial(k) for k in range(servers)]
    last = rate**servers / math.factorial(servers) / (1.0 - 0.8)
    must_wait = last / (sum(terms) + last)
    # Who finds a seat while others run waits for the next step, half of one on average.
    joins_s = STEP_S / 2
    assert waited_s(run) == pytest.approx(must_wait / (servers - rate) + joins_s, rel=0.08)


@pytest.mark.slow
def test_as_many_are_there_as_littles_law_says() -> None:
    run, steps = served(poisson(20_000, 3.2, seed=5), 4, watch=True)
    present = sum((s.running + s.waiting) * s.duration_s for s in steps) / run.end_s
    rate = len(run.workload.requests) / run.end_s
    # A request is seen from the step after its arrival on, half a step later.
    assert present == pytest.approx(rate * (sojourn_s(run) - STEP_S / 2), rel=0.005)


def test_no_seat_is_empty_while_somebody_waits() -> None:
    _, steps = served(poisson(2_000, 3.8, seed=7), 4, watch=True)
    assert max(step.waiting for step in steps) > 10
    assert all(step.running == 4 for step in steps if step.waiting)
    assert all(step.tokens for step in steps)
