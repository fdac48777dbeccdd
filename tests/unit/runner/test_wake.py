"""Until when a policy holds all requests, and who goes where it does not say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from batchpolicy.config import Bounds, Queue
from batchpolicy.errors import PolicyContractError
from batchpolicy.policy import Ranking
from batchpolicy.runner import Plan
from tests.support.policies import Arrival, Patched
from tests.support.rig import Rig


def holding_until(wake_s: Any, **parts: Any) -> Rig:
    def rank(rows: Any, step: Any) -> Ranking:
        held = np.full(len(rows), step.now_s >= wake_s)
        return Ranking(-rows.seq.astype(np.float64), admissible=held, wake_s=wake_s)

    return Rig(Patched.over(Arrival(), rank=rank), parts=parts)


def test_nobody_starts_before_the_time_that_the_policy_names() -> None:
    rig = holding_until(3.0)
    rig.arrive("a", "b")
    for _ in range(2):
        plan = rig.plan()
        assert (plan.admit, plan.wake_s) == ([], 3.0)
    assert rig.plan().admit == ["a", "b"]
    assert not rig.counters["forced"]


@pytest.mark.parametrize("wake_s", [math.inf, 1.0, 0.0])
def test_the_oldest_goes_where_no_time_is_named_or_it_is_past(wake_s: float) -> None:
    def rank(rows: Any, step: Any) -> Ranking:
        held = np.zeros(len(rows), dtype=np.bool_)
        return Ranking(np.zeros(len(rows)), admissible=held, wake_s=wake_s)

    rig = Rig(Patched.over(Arrival(), rank=rank))
    rig.arrive("a", "b")
    assert rig.plan().admit == ["a"]
    assert rig.counters["forced"] == 1


def test_while_somebody_runs_all_others_may_be_held_without_end() -> None:
    def rank(rows: Any, step: Any) -> Ranking:
        return Ranking(np.zeros(len(rows)), admissible=rows.seq == 0)

    rig = Rig(Patched.over(Arrival(), rank=rank))
    rig.running("a")
    rig.arrive("b")
    assert rig.plan() == Plan()
    assert not rig.counters["forced"]


def test_who_is_overdue_before_goes_and_the_plan_says_when() -> None:
    rig = holding_until(50.0, bounds=Bounds(max_wait_s=2.5))
    rig.arrive("a")
    # It arrives with the first tick, at 1 s.
    assert [rig.plan().wake_s for _ in range(3)] == [3.5] * 3
    assert rig.plan().admit == ["a"]


def test_a_wait_of_a_tenth_ends_at_the_time_that_the_plan_says() -> None:
    # 0.1 + 0.7 - 0.1 is less than 0.7 as floats go.
    rig = holding_until(50.0, bounds=Bounds(max_wait_s=0.7))
    rig.arrive("a", arrival_s=0.1)
    rig.now_s = 0.1 - 1.0
    wake_s = rig.plan().wake_s
    rig.now_s = wake_s - 1.0
    assert rig.plan().admit == ["a"]


def test_who_expires_before_is_told_of() -> None:
    rig = holding_until(50.0, queue=Queue(ttl_s=4.0))
    rig.arrive("a", arrival_s=0.0)
    rig.arrive("b", arrival_s=0.5)
    assert rig.plan().wake_s == 4.0
    rig.plan()
    rig.plan()
    plan = rig.plan()
    assert [i for i, _ in plan.refuse] == ["a"]
    assert plan.wake_s == 4.5


def test_requests_that_cannot_start_expire_at_the_time_that_is_told() -> None:
    rig = Rig(Arrival(), parts={"queue": Queue(ttl_s=4.0)})
    rig.arrive("done")
    rig.plan()
    rig.start("done")
    rig.runner.finished("done", 2)  # type: ignore[arg-type]
    rig.arrive("blocked", arrival_s=1.5, ready=False)
    assert rig.plan().wake_s == 5.5


@pytest.mark.parametrize("wake_s", [math.nan, "soon", None, True])
def test_a_time_that_is_none_is_a_fault(wake_s: Any) -> None:
    rig = holding_until(3.0)
    rig.runner.policy._patches["rank"] = lambda rows, step: Ranking(  # type: ignore[attr-defined]
        np.zeros(len(rows)), wake_s=wake_s
    )
    rig.arrive("a")
    with pytest.raises(PolicyContractError, match="wake_s"):
        rig.plan()
