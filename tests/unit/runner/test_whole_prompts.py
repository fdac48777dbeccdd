"""Limits on tokens where a prompt goes whole into one step."""

from __future__ import annotations

from batchpolicy.config import LimitSettings
from batchpolicy.policy import Limits
from tests.support.policies import Arrival, Patched
from tests.support.rig import Rig

LOW = {"limits": LimitSettings(max_num_batched_tokens=20)}


def test_a_limit_on_tokens_holds_where_prompts_go_in_parts() -> None:
    rig = Rig(Arrival(), parts=LOW)
    assert rig.plan().limits == Limits(8, 20, None)


def test_where_prompts_go_whole_the_limit_stays_that_of_the_engine() -> None:
    # Else a prompt between 20 and 100 tokens would never start.
    rig = Rig(Arrival(), parts=LOW, chunks=False)
    rig.arrive("a", prompt=60)
    plan = rig.plan()
    assert plan.limits is None
    assert plan.admit == ["a"]


def test_neither_can_a_policy_lower_it_in_a_step() -> None:
    policy = Patched.over(Arrival(), limits=lambda _: Limits(4, 20, None))
    assert Rig(policy, chunks=False).plan().limits == Limits(4, 100, None)
