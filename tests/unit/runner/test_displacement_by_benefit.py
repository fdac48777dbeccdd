from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policy import Policy, Ranking, Step
from batchpolicy.preemption import Preemption
from batchpolicy.requests import FloatArray, IntArray, Requests, Status
from batchpolicy.runner import Plan
from batchpolicy.runner.triage import VAIN_STEPS
from tests.support.policies import Arrival, Patched
from tests.support.rig import Rig


class Worth(Policy):
    """A request is worth the last digit of its prompt; its tier is the one before."""

    _asked: list[int] = PrivateAttr(default_factory=list)

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return (requests.prompt_tokens % 10).astype(np.float64)

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        return requests.prompt_tokens // 10 % 10

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        self._asked.append(step.index)
        return super().rank(waiting, step)


def rig_of(policy: Policy | None = None, **rule: Any) -> Rig:
    return Rig(policy or Worth(), preempt=Preemption(by="benefit", **rule))


def test_the_request_worth_least_goes_whatever_its_class() -> None:
    rig = rig_of()
    rig.running("worth 3", prompt=103, priority=9)
    rig.running("worth 1", prompt=101, priority=0)
    rig.running("worth 2", prompt=102, priority=5)
    rig.arrive("worth 4", prompt=104, priority=9)
    assert rig.plan(seats=0) == Plan(["worth 4"], ["worth 1"])


def test_equals_never_displace_and_a_margin_has_to_be_beaten() -> None:
    for margin, victims in [(0.0, ["v"]), (1.9, ["v"]), (2.0, []), (3.0, [])]:
        rig = rig_of(margin=margin)
        rig.running("v", prompt=103)
        rig.arrive("equal", prompt=103)
        assert rig.plan(seats=0) == Plan(["equal"], [])
        rig.arrive("better by 2", prompt=105)
        assert rig.plan(seats=0).preempt == victims


def test_a_better_tier_goes_before_any_benefit() -> None:
    rig = rig_of(margin=5.0)
    rig.running("tier 1", prompt=119)
    rig.running("tier 0", prompt=100)
    rig.arrive("tier 0 too", prompt=101)
    rig.arrive("tier 2", prompt=129)
    # The margin is of benefits; tiers stand above each other by themselves.
    plan = rig.plan(seats=0)
    assert plan == Plan(["tier 0 too", "tier 2"], ["tier 1"])


def test_what_keeping_is_worth_is_held_against_what_starting_is() -> None:
    def keeps(rows: Requests, step: Step) -> Any:
        return rows.prompt_tokens % 10 + np.where(rows.prompt_tokens == 101, 5.0, 0.0)

    rig = rig_of(Patched.over(Worth(), keep_benefit=keeps))
    rig.running("dear", prompt=101)
    rig.running("worth 3", prompt=103)
    rig.arrive("worth 4", prompt=104)
    assert rig.plan(seats=0).preempt == ["worth 3"]


def test_among_requests_worth_the_same_whoever_loses_least_goes() -> None:
    rig = rig_of()
    rig.running("200 computed", prompt=201)
    rig.running("100 computed", prompt=101)
    rig.running("300 computed", prompt=301)
    rig.arrive("worth 2", prompt=102)
    assert rig.plan(seats=0).preempt == ["100 computed"]


def test_a_request_is_displaced_as_often_as_the_rule_says() -> None:
    rig = rig_of(max_each=1)
    rig.running("v", prompt=101)
    rig.arrive("first", prompt=102)
    assert rig.plan(seats=0).preempt == ["v"]
    rig.runner.scheduled({"first": 100}, {"first": 0}, ["v"])
    rig.runner.produced({"first": 1}, {}, 0.5)
    rig.runner.finished("first", Status.FINISHED)
    rig.plan()
    rig.start("v", tokens=102)
    rig.arrive("second", prompt=102)
    assert rig.plan(seats=0) == Plan()


def test_the_whole_prompt_must_fit_or_nobody_goes() -> None:
    # 21 blocks are needed, and who is worth less holds 11.
    for free, victims in [(9, []), (10, ["11 blocks"])]:
        rig = rig_of()
        rig.running("11 blocks", prompt=101)
        rig.running("worth more", prompt=109)
        rig.arrive("21 blocks", prompt=208)
        assert rig.plan(blocks=free) == Plan(["21 blocks"], victims)


def test_a_target_does_not_make_a_request_wait_where_its_benefit_says_otherwise() -> None:
    rig = rig_of()
    rig.running("v", prompt=101)
    rig.arrive("better", prompt=102, ttft_slo_s=1000.0)
    assert rig.plan(seats=0).preempt == ["v"]


def test_a_ranking_on_a_scale_of_its_own_displaces_nobody() -> None:
    def turns(rows: Requests, step: Step) -> Ranking:
        return Ranking(np.full(len(rows), 1e9))

    rig = rig_of(Patched.over(Worth(), rank=turns))
    rig.running("v", prompt=102)
    rig.arrive("worse", prompt=101)
    assert rig.plan(seats=0) == Plan(["worse"], [])


@pytest.mark.parametrize("method", ["benefit", "tier", "keep_benefit"])
def test_nobody_goes_when_the_policy_fails_on_running_rows(method: str) -> None:
    def fails(rows: Requests, step: Step) -> Any:
        if rows is step.running:
            raise RuntimeError(method)
        return getattr(Worth(), method)(rows, step)

    rig = rig_of(Patched.over(Worth(), **{method: fails}))
    rig.runner._guard._strict = False
    rig.running("v", prompt=101)
    rig.arrive("better", prompt=102)
    plan = rig.plan(seats=0)
    # Without a benefit of keeping, that of running is held against the other.
    assert plan == Plan(["better"], ["v"] if method == "keep_benefit" else [])
    assert rig.counters["policy_faults"] >= 1


def test_in_vain_it_is_tried_again_after_a_change_or_some_steps() -> None:
    policy = Worth()
    rig = rig_of(policy)
    rig.running("v", prompt=103)
    rig.arrive("equal", prompt=103)
    policy._asked.clear()
    for _ in range(VAIN_STEPS + 1):
        rig.plan(seats=0)
    first, again = policy._asked
    assert again == first + VAIN_STEPS
    rig.plan(seats=0)
    rig.arrive("another", prompt=102)
    rig.plan(seats=0)
    assert policy._asked == [first, again, again + 2]


def test_without_blocks_for_running_requests_the_one_worth_least_goes() -> None:
    rig = rig_of()
    for name, prompt in [("worth 1", 101), ("worth 3", 103), ("worth 0", 100)]:
        rig.running(name, prompt=prompt, priority=-prompt)
    # One decodes into a block of its own.
    assert rig.plan(blocks=0) == Plan([], ["worth 0"], reorder=True)


def test_by_class_a_request_worth_more_displaces_nobody_of_its_class() -> None:
    rig = Rig(Worth(), preempt="class")
    rig.running("v", prompt=101)
    rig.arrive("better", prompt=109)
    assert rig.plan(seats=0) == Plan()


def test_in_the_order_of_arrival_nobody_who_came_later_displaces() -> None:
    rig = rig_of(Arrival())
    rig.running("earlier")
    rig.arrive("later", priority=-5)
    assert rig.plan(seats=0) == Plan(["later"], [])
