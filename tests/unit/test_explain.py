from __future__ import annotations

from typing import Any

import numpy as np

from batchpolicy.config import Bounds, LimitSettings, Memory
from batchpolicy.explain import MAX_ENDED, MAX_NOTES
from batchpolicy.policy import Step
from batchpolicy.requests import Requests, Status
from tests.support.policies import Arrival, Patched
from tests.support.rig import Rig


def only_even(rows: Requests, step: Step) -> np.ndarray:
    return rows.seq % 2 == 0


def last_cause(rig: Rig, name: str) -> str:
    return rig.runner.explain(name)[-1][1]


def test_without_a_seat_and_without_tokens_these_are_the_causes() -> None:
    rig = Rig(Arrival())
    rig.running("x", prompt=10)
    rig.arrive("a")
    rig.plan(seats=0)
    assert rig.runner.explain("a") == [(2, "seats")]
    rig.plan(seats=0)
    rig.running("long", prompt=95)
    assert last_cause(rig, "a") == "not taken by the engine"
    full = Rig(Arrival(), max_token_budget=1, max_running=8, parts={"limits": LimitSettings()})
    full.arrive("x", prompt=1)
    full.plan()
    full.start("x", tokens=1)
    full.arrive("a")
    full.plan()
    assert last_cause(full, "a") == "tokens"


def test_who_comes_behind_others_is_told_how_many_and_causes_are_told_where_they_begin() -> None:
    rig = Rig(Arrival())
    rig.arrive("a", "b", "c")
    rig.plan(seats=1)
    rig.start("a")
    rig.plan(seats=0)
    rig.plan(seats=0)
    rig.plan(seats=1)
    rig.start("b")
    assert rig.runner.explain("c") == [
        (1, "rank: 2 before it"),
        (2, "seats"),
        (4, "rank: 1 before it"),
    ]
    # It started with the first plan that it saw.
    assert rig.runner.explain("a") == []
    assert rig.runner.explain("b") == [(1, "rank: 1 before it"), (2, "seats")]


def test_beyond_the_window_so_many_are_before_it_at_least() -> None:
    rig = Rig(Arrival())
    rig.arrive(*(f"r{i}" for i in range(40)))
    rig.plan(seats=1)
    rig.start("r0")
    assert last_cause(rig, "r39") == "rank: 17 before it"


def test_tokens_that_others_of_the_plan_took_are_the_cause() -> None:
    rig = Rig(Arrival())
    rig.arrive("large", prompt=100)
    rig.arrive("next", prompt=10)
    rig.plan()
    rig.start("large", tokens=100)
    assert last_cause(rig, "next") == "tokens"


def test_kv_now_and_kv_later_are_told_apart_and_who_waits_behind_has_a_rank() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_bypass_s=0.0)})
    rig.arrive("large", prompt=90)
    rig.arrive("small")
    rig.plan(blocks=5)
    rig.runner.scheduled({}, {}, [])
    assert last_cause(rig, "large") == "kv"
    assert last_cause(rig, "small") == "rank: 1 before it"
    ahead = {"bounds": Bounds(max_bypass_s=0.0), "memory": Memory()}
    rig = Rig(Arrival(), total_kv_blocks=20, parts=ahead)
    rig.running("x", prompt=50, predicted_output_tokens=100.0)
    rig.arrive("later", prompt=60, predicted_output_tokens=50.0)
    rig.plan(blocks=14)
    assert last_cause(rig, "later") == "kv later"


def test_what_the_policy_closes_is_held_by_it_unless_it_ranks_behind_the_plan_anyway() -> None:
    rig = Rig(Patched.over(Arrival(), admissible=only_even))
    rig.arrive(*(f"r{i}" for i in range(40)))
    rig.plan(seats=1)
    assert last_cause(rig, "r1") == last_cause(rig, "r31") == "held by policy"
    assert last_cause(rig, "r38") == last_cause(rig, "r39") == "rank: 17 before it"


def test_an_overdue_request_is_named_as_the_bound_that_held_others_up() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_wait_s=3.0, turns="none")})
    rig.running("x")
    rig.arrive("late", priority=5)
    for _ in range(3):
        rig.plan(seats=0)
    rig.arrive("new", priority=5)
    rig.plan(seats=1)
    rig.start("late")
    assert last_cause(rig, "new") == "bound: late is overdue"


def test_nobody_passes_an_overdue_request_whose_kv_does_not_fit() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_wait_s=3.0, max_bypass_s=100.0)})
    rig.running("x")
    rig.arrive("late", prompt=90)
    for _ in range(3):
        rig.plan(blocks=5, seats=0)
    rig.arrive("new")
    rig.plan(blocks=5)
    assert last_cause(rig, "late") == "kv"
    assert last_cause(rig, "new") == "bound: late is overdue"


def test_an_adapter_without_a_place_is_the_cause() -> None:
    rig = Rig(Arrival(), max_loras=1)
    rig.running("a1", lora="a")
    rig.arrive("b1", lora="b")
    rig.arrive("a2", lora="a")
    rig.plan()
    assert last_cause(rig, "b1") == "adapter"


def test_until_it_can_start_a_request_is_not_ready() -> None:
    rig = Rig(Arrival())
    rig.running("x")
    rig.arrive("a", ready=False)
    rig.arrive("b")
    rig.plan(seats=0)
    rig.plan(seats=0)
    rig.runner.ready("a", True)
    rig.plan(seats=0)
    assert rig.runner.explain("a") == [(2, "not ready"), (4, "seats")]
    rig.runner.ready("a", False)
    rig.plan(seats=0)
    assert last_cause(rig, "a") == "not ready"


def test_a_wait_after_a_preemption_is_explained_anew() -> None:
    rig = Rig(Arrival())
    rig.arrive("a")
    rig.plan(seats=0)
    rig.plan()
    rig.start("a")
    rig.runner.preempted(["a"])
    rig.plan(seats=0)
    assert rig.runner.explain("a") == [(3, "seats")]


def test_the_last_that_ended_can_be_explained_and_the_last_plans_are_remembered() -> None:
    rig = Rig(Arrival())
    rig.running("x")
    rig.arrive("a", "b")
    for i in range(2 * MAX_NOTES):
        # Plans that look at the queue and those that do not in turn: no run of equal ones.
        rig.plan(seats=i % 2)
    rig.runner.finished("a", Status.ABORTED)
    steps = [step for step, _ in rig.runner.explain("a")]
    assert steps == sorted(steps)
    assert (len(steps), steps[-1]) == (MAX_NOTES, 1 + 2 * MAX_NOTES)
    for i in range(MAX_ENDED):
        rig.arrive(f"r{i}")
        rig.runner.finished(f"r{i}", Status.ABORTED)
    assert rig.runner.explain("a") == []
    assert rig.runner.explain("nobody") == []


def test_a_run_of_plans_that_look_at_nobody_is_remembered_as_one() -> None:
    rig = Rig(Arrival())
    rig.running("x")
    rig.arrive("a")
    for _ in range(5 * MAX_NOTES):
        rig.plan(seats=0)
    rig.arrive("b")
    rig.plan(seats=0)
    first: Any = rig.runner.explain("a"), rig.runner.explain("b")
    assert first == ([(2, "seats")], [(2 + 5 * MAX_NOTES, "seats")])
