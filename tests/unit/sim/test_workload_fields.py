"""What only the light engine serves, as a workload says it."""

from __future__ import annotations

import math

import pytest

from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload
from tests.unit.sim.light import request


def test_a_workload_says_what_an_engine_must_be_able_to_do() -> None:
    plain = request("a", 4, 1, at=1.0, ready_at_s=1.0)
    assert Workload("w", (plain,)).needs() == {}
    asks = (
        request("b", 4, 1, at=1.0, ready_at_s=1.5),
        request("c", 4, 1, at=1.0, arrival_after="a"),
        request("d", 4, 1, at=1.0, encoder_tokens=3),
    )
    assert Workload("w", (plain, *asks)).needs() == {
        "blocked_requests": "ready_at_s",
        "follow_ups": "arrival_after",
        "encoder_budget": "encoder_tokens",
    }


def test_who_follows_another_stands_behind_it_and_need_not_come_in_order() -> None:
    a, b = request("a", 4, 1, at=1.0), request("b", 4, 1, arrival_after="a")
    assert Workload("w", (a, b)).requests == (a, b)
    with pytest.raises(WorkloadError, match="arrival_after is 'a', expected the id of a request"):
        Workload("w", (b, a))


@pytest.mark.parametrize("gap_s", [-1.0, math.nan, math.inf])
def test_a_gap_is_a_finite_time(gap_s: float) -> None:
    with pytest.raises(WorkloadError, match="'b': gap_s is"):
        Workload("w", (request("a", 4, 1), request("b", 4, 1, arrival_after="a", gap_s=gap_s)))


def test_a_stretched_workload_keeps_the_time_for_which_a_request_is_blocked() -> None:
    workload = Workload("w", (request("a", 4, 1), request("b", 4, 1, at=2.0, ready_at_s=2.5)))
    _, b = workload.stretched(3.0).requests
    assert (b.arrival_s, b.ready_at_s) == (6.0, 6.5)
