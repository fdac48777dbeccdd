from __future__ import annotations

from typing import Any

import numpy as np

from batchpolicy.config import Bounds, Queue
from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.runner import Plan
from tests.support.policies import Arrival, Patched, Shortest
from tests.support.rig import Rig


def latest_first(rows: Requests, step: Step) -> FloatArray:
    return rows.seq.astype(np.float64)


def nobody(rows: Requests, step: Step) -> np.ndarray:
    return np.zeros(len(rows), dtype=np.bool_)


def second_class(rows: Requests, step: Step) -> np.ndarray:
    # Everybody who came first stands behind a whole class.
    return (rows.seq < 2).astype(np.int64)


def bounded(policy: Any = None, **bounds: Any) -> Rig:
    policy = policy or Patched.over(Arrival(), benefit=latest_first)
    return Rig(policy, parts={"bounds": Bounds(**{"max_wait_s": 3.0, "turns": "none", **bounds})})


def test_whoever_waits_longer_than_the_bound_goes_first_and_the_oldest_of_them_before() -> None:
    rig = bounded()
    rig.arrive("a", "b")
    assert rig.plan().admit == ["b", "a"]
    assert rig.plan().admit == ["b", "a"]
    rig.arrive("c", "d")
    # They came with the first plan, and the bound is reached with the fourth.
    assert rig.plan().admit == ["d", "c", "b", "a"]
    assert rig.plan().admit == ["a", "b", "d", "c"]


def test_an_overdue_request_goes_before_every_tier_and_whatever_is_admissible() -> None:
    rig = bounded(Patched.over(Arrival(), tier=second_class, admissible=nobody))
    rig.arrive("a", "b", "c")
    rig.running("runs")
    assert [rig.plan().admit for _ in range(3)] == [[], [], ["a", "b", "c"]]


def test_so_many_overtakes_make_a_request_overdue() -> None:
    rig = bounded(max_wait_s=1e9, max_overtakes=2)
    rig.arrive("first")
    rig.running("x")
    assert rig.plan().admit == ["first"]
    rig.arrive("y", "z")
    assert rig.plan().admit == ["z", "y", "first"]
    rig.start("z")
    assert rig.plan().admit == ["first", "y"]


def test_nobody_passes_an_overdue_request_that_does_not_fit() -> None:
    rig = bounded(max_bypass_s=100.0)
    rig.arrive("large", prompt=90)
    rig.arrive("small")
    assert [rig.plan(blocks=5).admit for _ in range(4)] == [
        ["small", "large"],
        ["small", "large"],
        ["small", "large"],
        ["large", "small"],
    ]


def test_who_gets_the_slot_of_an_overdue_request_that_left_is_passed_like_any_other() -> None:
    rig = bounded(Arrival(), max_bypass_s=100.0)
    rig.arrive("left", prompt=90)
    for _ in range(4):
        rig.plan(blocks=5)
    rig.runner.finished("left", 3)  # type: ignore[arg-type]
    rig.plan(blocks=5)
    rig.arrive("large", prompt=90)
    rig.arrive("small")
    assert rig.runner._ledger.table.slots["large"] == 0
    assert rig.plan(blocks=5).admit == ["small", "large"]


def test_for_an_overdue_request_whose_adapter_has_no_place_one_is_made() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_wait_s=3.0)}, max_loras=2)
    rig.running("a1", "a2", lora="a")
    rig.running("b1", lora="b")
    rig.arrive("c1", lora="c")
    rig.arrive("a3", lora="a")
    rig.arrive("b2", lora="b")
    rig.arrive("none")
    assert rig.plan().admit == ["a3", "b2", "none"]
    for _ in range(2):
        rig.plan()
    # Nobody joins the adapter that the fewest use; a3 and the others are overdue by now as well.
    assert rig.plan().admit == ["a3", "none"]
    rig.runner.finished("b1", 2)  # type: ignore[arg-type]
    assert rig.plan().admit == ["c1", "a3", "b2", "none"]


def test_tenants_with_overdue_requests_take_turns_with_each_other_and_with_the_rest() -> None:
    rig = bounded(Arrival(), turns="tenant")
    rig.arrive("f1", "f2", "f3", tenant="flood")
    rig.arrive("b1", tenant="b")
    for _ in range(3):
        rig.plan()
    rig.arrive("c1", "c2", "c3", tenant="c")
    rig.arrive("f4", tenant="flood")
    # The flood's next one comes after b's, and its latest only after its overdue ones.
    assert rig.plan().admit == ["f1", "c1", "b1", "c2", "f2", "c3", "f3", "f4"]


def test_turns_go_on_over_steps_in_which_one_seat_is_free() -> None:
    rig = bounded(Arrival(), turns="tenant")
    rig.arrive("f1", "f2", "f3", tenant="flood")
    rig.arrive("b1", tenant="b")
    for _ in range(3):
        rig.plan()
    rig.arrive("c1", "c2", "c3", tenant="c")
    admitted = []
    for _ in range(7):
        first = rig.plan(seats=1).admit[0]
        rig.start(first)
        admitted.append(first)
    assert admitted == ["f1", "c1", "b1", "c2", "f2", "c3", "f3"]


def test_within_its_tenant_no_later_arrival_overtakes_an_overdue_request() -> None:
    rig = bounded(turns="tenant")
    rig.arrive("a1", tenant="a")
    for _ in range(3):
        rig.plan()
    rig.arrive("a2", "a3", tenant="a")
    rig.arrive("b1", tenant="b")
    # By the policy alone: b1, a3, a2, a1.
    assert rig.plan().admit == ["a1", "b1", "a3", "a2"]


def test_a_displaced_request_counts_its_wait_anew_and_once_overdue_goes_once_more() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_wait_s=3.0)}, max_running=1)
    rig.running("victim", priority=5)
    displaced = 0
    for i in range(3):
        rig.arrive(f"urgent{i}", priority=0)
        plan = rig.plan(seats=0)
        if not plan.preempt:
            break
        displaced += 1
        rig.runner.scheduled({f"urgent{i}": 10}, {f"urgent{i}": 0}, ["victim"])
        rig.runner.produced({f"urgent{i}": 1}, {}, 0.5)
        for _ in range(3):
            rig.plan(seats=0)
            rig.decode(f"urgent{i}")
        rig.runner.finished(f"urgent{i}", 2)  # type: ignore[arg-type]
        assert rig.plan(seats=1).admit == ["victim"]
        rig.start("victim")
    assert displaced == 2


def test_a_full_queue_refuses_the_last_in_rank_and_not_who_can_start() -> None:
    rig = Rig(Shortest(), parts={"queue": Queue(max_waiting=2)}, max_running=4)
    rig.arrive("p50", prompt=50)
    rig.arrive("p10", "p10 too", prompt=10)
    rig.arrive("p40", prompt=40)
    # One seat: p10 starts and two may wait.
    assert rig.plan(seats=1).refuse == [("p50", "refused: 2 may wait")]
    rig.start("p10")
    rig.arrive("p20", "p30", prompt=25)
    # No seat: four wait, of whom p40 and the later of two equals go.
    plan = rig.plan(seats=0)
    assert [i for i, _ in plan.refuse] == ["p40", "p30"]
    assert rig.plan(seats=0) == Plan()
    assert rig.counters["refused"] == 3


def test_nobody_may_wait_where_the_limit_is_nil_but_whoever_finds_a_seat_is_served() -> None:
    rig = Rig(Arrival(), parts={"queue": Queue(max_waiting=0)})
    rig.arrive("a", "b", "c")
    plan = rig.plan(seats=2)
    assert plan.admit == ["a", "b"]
    assert [i for i, _ in plan.refuse] == ["c"]


def test_who_was_displaced_is_not_refused() -> None:
    rig = Rig(Arrival(), parts={"queue": Queue(max_waiting=0)}, max_running=1)
    rig.running("victim", priority=5)
    rig.arrive("urgent", priority=0)
    assert rig.plan(seats=0) == Plan(["urgent"], ["victim"])
    rig.runner.scheduled({"urgent": 10}, {"urgent": 0}, ["victim"])
    assert rig.plan(seats=0).refuse == []
