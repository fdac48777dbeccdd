from __future__ import annotations

import numpy as np

from batchpolicy.config import Bounds, LimitSettings, Queue
from batchpolicy.policy import Limits, Ranking, Step
from batchpolicy.requests import Requests
from batchpolicy.runner import Plan
from tests.support.policies import Arrival, Patched
from tests.support.rig import BLOCK, Rig


def test_a_request_that_does_not_fit_is_passed_for_a_time_and_then_holds_its_place() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_bypass_s=2.0)})
    rig.arrive("fits", prompt=20)
    rig.arrive("too large", prompt=90)
    rig.arrive("small", prompt=10)
    # A second passes with each plan; the patience counts from the first.
    assert rig.plan(blocks=5).admit == ["fits", "small", "too large"]
    assert rig.plan(blocks=5).admit == ["fits", "small", "too large"]
    assert rig.plan(blocks=5).admit == ["fits", "too large", "small"]


def test_nobody_passes_where_the_bound_is_nil() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_bypass_s=0.0)})
    rig.arrive("fits", prompt=20)
    rig.arrive("too large", prompt=90)
    rig.arrive("small", prompt=10)
    # The engine stops at what does not fit.
    assert rig.plan(blocks=5).admit == ["fits", "too large", "small"]


def test_patience_starts_anew_once_the_request_has_fitted() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_bypass_s=1.5)})
    rig.arrive("large", prompt=90)
    rig.arrive("small", prompt=10)
    assert rig.plan(blocks=5).admit == ["small", "large"]
    assert rig.plan(blocks=50).admit == ["large", "small"]
    assert rig.plan(blocks=5).admit == ["small", "large"]
    assert rig.plan(blocks=5).admit == ["small", "large"]
    assert rig.plan(blocks=5).admit == ["large", "small"]


def test_a_prompt_larger_than_all_of_the_cache_is_refused_at_once() -> None:
    rig = Rig(Arrival(), total_kv_blocks=3)
    rig.arrive("fits", prompt=3 * BLOCK)
    rig.arrive("never", prompt=3 * BLOCK + 1)
    plan = rig.plan(blocks=3)
    assert plan.refuse == [("never", "refused: its prompt needs 4 KV blocks, of 3 that there are")]
    assert plan.admit == ["fits"]
    assert rig.plan(blocks=3).refuse == []
    assert rig.counters["refused"] == 1


def test_the_time_limit_in_the_queue_fires_on_time_and_only_for_who_has_not_started() -> None:
    rig = Rig(Arrival(), parts={"queue": Queue(ttl_s=10.0)})
    rig.arrive("own", queue_ttl_s=2.0)
    rig.arrive("default")
    rig.arrive("started", queue_ttl_s=2.0)
    rig.plan()
    rig.start("started")
    assert rig.plan(seats=0).refuse == []
    plan = rig.plan(seats=0)
    assert plan.refuse == [("own", "expired: it waited longer than 2 s to start")]
    for _ in range(7):
        assert rig.plan(seats=0).refuse == []
    assert [i for i, _ in rig.plan(seats=0).refuse] == ["default"]


def test_what_the_policy_refuses_ends_and_the_rest_is_offered() -> None:
    def rank(waiting: Requests, step: Step) -> Ranking:
        return Ranking(-waiting.seq.astype(np.float64), refuse=waiting.prompt_tokens > 50)

    rig = Rig(Patched.over(Arrival(), rank=rank))
    rig.arrive("large", prompt=60)
    rig.arrive("small", prompt=10)
    plan = rig.plan()
    assert plan.refuse == [("large", "refused: by the policy")]
    assert plan.admit == ["small"]
    assert rig.plan().admit == ["small"]


def test_limits_of_the_file_stay_below_the_ceilings_and_are_told_once() -> None:
    parts = {"limits": LimitSettings(max_num_seqs=2, max_num_batched_tokens=1000)}
    rig = Rig(Arrival(), parts=parts)
    rig.arrive("a", "b", "c")
    assert rig.plan().limits == Limits(max_running=2, token_budget=100, prefill_chunk=None)
    assert rig.plan().limits is None
    rig.start("a", "b")
    # No seat is left under the limit, though the engine has six.
    assert rig.plan(seats=6) == Plan()


def test_limits_of_the_policy_are_asked_each_step_and_told_when_they_change() -> None:
    def limits(step: Step) -> Limits:
        assert (step.max_running, step.max_token_budget) == (8, 100)
        return Limits(token_budget=50 if step.now_s < 3.0 else 60, prefill_chunk=1)

    rig = Rig(Patched.over(Arrival(), limits=limits))
    # A chunk is at least a block.
    assert rig.plan().limits == Limits(8, 50, BLOCK)
    assert rig.plan().limits is None
    assert rig.plan().limits == Limits(8, 60, BLOCK)


def test_limits_that_make_no_sense_are_a_fault_and_leave_those_of_the_engine() -> None:
    for bad in (Limits(max_running=0), Limits(token_budget=2.5), None):  # type: ignore[arg-type]
        rig = Rig(Patched.over(Arrival(), limits=lambda step, bad=bad: bad))
        rig.runner._guard._strict = False
        rig.arrive("a")
        assert rig.plan() == Plan(["a"])
        assert rig.counters["policy_faults"] == 1


def test_what_has_started_is_not_refused_by_the_policy() -> None:
    def rank(waiting: Requests, step: Step) -> Ranking:
        return Ranking(-waiting.seq.astype(np.float64), refuse=waiting.prompt_tokens > 0)

    rig = Rig(Patched.over(Arrival(), rank=rank))
    rig.arrive("new")
    assert rig.plan().refuse == [("new", "refused: by the policy")]
    rig.arrive("started")
    rig.start("started")
    rig.runner.preempted(["started"])
    plan = rig.plan()
    assert (plan.admit, plan.refuse) == (["started"], [])
