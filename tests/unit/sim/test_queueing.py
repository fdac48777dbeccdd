"""The light engine as the textbook's queues: one token a step and steps of equal length."""

from __future__ import annotations

import pytest

from batchpolicy.engine import Run, StepRecord
from batchpolicy.workload import Workload
from batchpolicy_sim import LightEngine
from batchpolicy_tuning import queueing
from batchpolicy_tuning.queueing import STEP_S, erlang_wait_s, poisson, waited_s


def served(workload: Workload, servers: int, watch: bool = False) -> tuple[Run, list[StepRecord]]:
    return queueing.served(LightEngine(), workload, servers, watch=watch)


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


def test_the_formula_is_erlangs_and_allows_for_the_steps() -> None:
    # M/M/1 at 0.8 waits 4 s; geometric service of 20 steps varies by 0.95 of exponential.
    assert erlang_wait_s(1, 0.8) == pytest.approx(4.0 * 1.95 / 2)
    # M/M/2 at 1.6: 1.28 / 0.2 = 6.4 of 1 + 1.6 + 6.4 wait, 32/45 of 1 / 0.4 s on average.
    assert erlang_wait_s(2, 1.6) == pytest.approx(32 / 45 * 2.5 * 1.95 / 2 + STEP_S / 2)


# A sample's own error is some 3%, as waits are alike for hundreds of requests.
@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2, 8])
def test_seats_are_the_queue_of_erlang(servers: int) -> None:
    rate = 0.8 * servers
    run, _ = served(poisson(150_000, rate, seed=servers), servers)
    assert waited_s(run) == pytest.approx(erlang_wait_s(servers, rate), rel=0.08)


@pytest.mark.slow
def test_as_many_are_there_as_littles_law_says() -> None:
    run, steps = served(poisson(20_000, 3.2, seed=5), 4, watch=True)
    present, expected = queueing.littles_law(run, steps)
    assert present == pytest.approx(expected, rel=0.005)


def test_no_seat_is_empty_while_somebody_waits() -> None:
    _, steps = served(poisson(2_000, 3.8, seed=7), 4, watch=True)
    assert max(step.waiting for step in steps) > 10
    assert queueing.idle_seats(steps, 4) == 0
    assert all(step.tokens for step in steps)
