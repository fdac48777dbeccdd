"""Steps of decodes on an engine whose steps hold prefills or decodes."""

from __future__ import annotations

import pytest

from batchpolicy.config import LimitSettings
from batchpolicy.runner import Plan
from batchpolicy.runner.decode_turns import DecodeTurns
from tests.support.policies import Arrival
from tests.support.rig import Rig


def test_decodes_are_due_after_the_gap_and_not_without_anybody_who_decodes() -> None:
    turns = DecodeTurns(0.2)
    assert not turns.due(5.0, 0), "nobody has waited until now"
    assert not turns.due(5.1, 3)
    assert turns.due(5.2, 3)
    turns.taken(5.2)
    assert not turns.due(5.3, 3)
    assert turns.due(5.4, 3)


@pytest.mark.parametrize("gap_s", [0.0, float("inf")])
def test_without_a_gap_prefills_always_go_first(gap_s: float) -> None:
    turns = DecodeTurns(gap_s)
    turns.due(0.0, 0)
    assert not turns.due(1e6, 3)


def apart(**limits: float) -> Rig:
    """A runner for an engine whose steps prefill or decode; ``a`` decodes since 1 s."""
    rig = Rig(Arrival(), parts={"limits": LimitSettings(**limits)}, mixed=False)
    rig.running("a")
    rig.arrive("b")
    return rig


def test_a_plan_leaves_the_step_to_decodes_and_then_goes_on() -> None:
    rig = apart(decode_gap_s=1.5)
    # A plan a second: at 2 s one has gone by, at 3 s two.
    assert rig.plan() == rig.runner.plan(100, 8) == Plan(["b"])
    plan = rig.plan()
    assert (plan.decode, plan.admit) == (True, [])
    assert rig.counters["decode_turns"] == 1
    rig.decode("a")
    assert rig.plan() == Plan(["b"])


def test_a_step_of_decodes_may_be_told_in_one_number() -> None:
    rig = apart(decode_gap_s=1.5)
    rig.plan()
    assert not rig.runner.scheduled_steadily(2), "only one decodes"
    assert rig.runner.scheduled_steadily(1)
    assert rig.runner.produced_steadily(1, 0.5)
    assert not rig.plan().decode, "at 2 s they had their turn"


def test_a_request_that_is_told_of_alone_has_no_part_in_the_step_of_prompts() -> None:
    rig = apart()
    rig.plan()
    rig.runner.scheduled({"b": 10}, {"b": 0}, [])
    assert rig.runner.produced_steadily(1, 0.5)
    rig.runner.scheduled({"a": 1, "b": 1}, {}, [])
    assert rig.runner.produced_steadily(2, 0.5)


def test_a_decode_takes_nothing_of_the_budget_of_a_step_that_prefills() -> None:
    rig = Rig(Arrival(), mixed=False, max_token_budget=10)
    rig.running("a")
    rig.arrive("b")
    assert rig.runner.engine.decode_budget_tokens == 0
    assert rig.runner.plan(100, 8).admit == ["b"]
