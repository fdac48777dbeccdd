from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from batchpolicy.policy import Limits, Step
from batchpolicy.runner.controller import FEWER, MORE_STEPS
from batchpolicy.step_cost import FormulaCost, StepCost, StepShape
from tests.support.plant import BLOCK, Plant
from tests.support.policies import Arrival

STEADY = FormulaCost(base_s=0.010, token_s=5e-5)
"""10 ms, and 50 us for each token: what decodes read is free, so that load stays constant."""
T = 0.05


def test_a_step_has_as_many_prompt_tokens_as_the_slack_of_the_decodes_allows() -> None:
    plant = Plant(STEADY, target_s=T)
    plant.add_decodes(20)
    plant.add_prompt()
    # 10 ms + 50 us * (20 + n) = 50 ms: 780 tokens, which is 48 blocks and a half.
    # One more fits when the time that half a block leaves has added up.
    assert set(plant.run(200)[-100:]) <= {768, 784}
    mean_s = sum(seconds for _, seconds in plant.steps[-100:]) / 100
    assert mean_s == pytest.approx(T, rel=0.02)
    assert mean_s <= 1.001 * T


def test_with_a_known_cost_the_first_step_is_right_already() -> None:
    plant = Plant(STEADY, target_s=T, known=STEADY)
    plant.add_decodes(20)
    plant.add_prompt()
    # 98% of 50 ms leave time for 760 tokens.
    assert plant.run(1) == [752]


def test_a_known_cost_that_is_wrong_is_corrected() -> None:
    plant = Plant(STEADY, target_s=T, known=STEADY.adjusted(0.5, 0.0))
    plant.add_decodes(20)
    plant.add_prompt()
    assert set(plant.run(200)[-100:]) <= {768, 784}


@st.composite
def plants(draw: st.DrawFn) -> Plant:
    cost = FormulaCost(
        base_s=draw(st.floats(0.001, 0.02)),
        weights_s=draw(st.floats(0.0, 0.01)),
        token_s=draw(st.floats(1e-5, 2e-4)),
        sharpness=draw(st.floats(1.0, 3.0)),
        decode_context_token_s=draw(st.sampled_from([0.0, 1e-8, 1e-7])),
        attention_pair_s=0.0,
        sequence_s=draw(st.sampled_from([0.0, 2e-5])),
    )
    plant = Plant(
        cost,
        target_s=draw(st.floats(0.02, 0.2)),
        budget=draw(st.sampled_from([256, 1024, 8192])),
        known=draw(st.sampled_from([None, None, cost])),
        lag=0,
    )
    plant.add_decodes(draw(st.integers(1, 60)), draw(st.integers(1, 500)))
    return plant


def _to_and_fro(course: list[int]) -> int:
    """The deepest fall from an earlier value, or the highest rise, whichever is less."""
    falls = max(max(course[:i]) - value for i, value in enumerate(course) if i)
    rises = max(value - min(course[:i]) for i, value in enumerate(course) if i)
    return min(falls, rises)


@given(plants())
@settings(max_examples=40, deadline=None)
def test_under_constant_load_it_settles_within_a_block_either_way(plant: Plant) -> None:
    plant.add_prompt()
    plant.run(150)
    settled = plant.run(60)
    # What decodes read grows from step to step, so that the right number falls a little.
    cost = cast(FormulaCost, plant.cost)
    drift = 60 * len(plant.decoding) * cost.decode_context_token_s / cost.token_s
    # To and fro by two blocks at most; one way only while answers that started late catch up.
    assert _to_and_fro(settled) <= 2 * BLOCK + drift
    mean_s = sum(seconds for _, seconds in plant.steps[-60:]) / 60
    assert mean_s <= 1.01 * plant.target_s or min(settled) == BLOCK


@given(plants(), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_after_a_jump_of_the_load_steps_are_right_again_soon(plant: Plant, more: int) -> None:
    plant.add_prompt()
    plant.run(150)
    plant.end_decodes(list(plant.decoding)[more:])
    plant.add_decodes(1)
    plant.run(60)
    target_s = plant.target_s
    block_s = BLOCK * cast(FormulaCost, plant.cost).token_s
    for prefill, seconds in plant.steps[-10:]:
        # Right, or as short as it can be made.
        assert seconds <= 1.1 * target_s + block_s or prefill == BLOCK
        spare = 0.8 * target_s - block_s - seconds
        assert spare <= 0.0 or prefill >= plant.budget - len(plant.decoding) - BLOCK


@given(plants())
@settings(max_examples=40, deadline=None)
def test_it_never_leaves_the_room_between_a_block_and_the_start_values(plant: Plant) -> None:
    plant.add_prompt()
    for _ in range(80):
        plant.step()
        seats, tokens, chunk = plant.limits
        assert tokens is not None and len(plant.decoding) + BLOCK <= tokens <= plant.budget
        assert chunk is None or BLOCK <= chunk <= plant.budget
        assert seats is not None and 1 <= seats <= 64


@given(st.integers(0, 2**32))
@settings(max_examples=5, deadline=None)
def test_equal_events_give_equal_limits(seed: int) -> None:
    def course() -> list[Limits]:
        plant = Plant(STEADY, target_s=0.02 + seed % 7 * 0.01)
        plant.add_decodes(1 + seed % 50)
        plant.add_prompt()
        found: list[Limits] = []
        for _ in range(40):
            plant.step()
            found.append(plant.limits)
        return found

    assert course() == course()


def test_without_decodes_nothing_is_limited() -> None:
    plant = Plant(STEADY, target_s=T)
    plant.add_decodes(20)
    plant.add_prompt()
    plant.run(20)
    assert plant.limits.token_budget != 2048
    plant.end_decodes(list(plant.decoding))
    assert plant.run(1) == [2048]


class Slow(StepCost):
    """Each step is longer than any target."""

    @override
    def __call__(self, shape: StepShape) -> float:
        return 1.0


def test_prompts_go_on_by_a_block_where_decodes_alone_take_too_long() -> None:
    plant = Plant(Slow(), target_s=T)
    plant.add_decodes(20)
    plant.add_prompt()
    assert plant.run(30)[-1] == BLOCK
    # The prompt has a seat as well; nobody loses one, and nobody gets one.
    assert plant.limits.max_running == 21


def test_seats_open_again_when_decodes_are_short_enough() -> None:
    cost = FormulaCost(base_s=0.001, sequence_s=1e-3)
    plant = Plant(cost, target_s=0.03, known=cost)
    plant.add_decodes(40)
    plant.run(30)
    assert plant.limits.max_running == 40
    plant.end_decodes(list(plant.decoding)[27:])
    plant.run(1)
    # 28 ms is within the target, but not by a tenth of it.
    assert plant.limits.max_running == 27
    plant.end_decodes(list(plant.decoding)[20:])
    plant.run(1)
    assert plant.limits.max_running == 64


def test_requests_with_a_target_of_their_own_are_held_to_that() -> None:
    plant = Plant(STEADY, target_s=T, known=STEADY)
    plant.add_decodes(20, tpot_slo_s=0.1)
    plant.add_prompt()
    # 98 ms of 100: 1,740 tokens beside the decodes.
    assert plant.run(1) == [1728]


def test_a_late_answer_gets_shorter_steps_and_prompts_still_go_on() -> None:
    plant = Plant(STEADY, target_s=T, known=STEADY)
    plant.add_decodes(20)
    plant.add_prompt()
    plant.now_s += 10.0
    # 98% of 80% of the target are 39.2 ms: 564 tokens beside the decodes.
    assert plant.run(1) == [560]


class Tight(Arrival):
    """A policy with limits of its own."""

    @override
    def limits(self, step: Step) -> Limits:
        return Limits(30, 500, 200)


def test_the_tightest_of_file_policy_and_controller_counts() -> None:
    plant = Plant(STEADY, target_s=T, policy=Tight(), settings={"max_num_batched_tokens": 300})
    plant.add_decodes(10)
    plant.add_prompt()
    plant.run(20)
    assert plant.limits == Limits(30, 300, 200)


def test_seats_are_cut_after_a_preemption_and_come_back_one_by_one() -> None:
    plant = Plant(STEADY, target_s=10.0)
    plant.add_decodes(20)
    plant.run(2)
    assert plant.limits.max_running == 64
    plant.plan()
    lost = "d19"
    del plant.decoding[lost]
    plant.runner.scheduled(dict.fromkeys(plant.decoding, 1), {}, [lost])
    plant._took(0, StepShape(decodes=19), list(plant.decoding))
    plant.runner.ready(lost, False)
    plant.plan()
    assert plant.limits.max_running == int(FEWER * 19) == 17
    assert plant.runner.counters["limits_lowered"] == 1
    # More run than have a seat, and nobody is displaced for that.
    assert len(plant.runner._ledger.running) == 19
    # One each 16 steps, as long as all are taken: 17, 18, 19, 20.
    plant.run(4 * MORE_STEPS)
    assert plant.limits.max_running == 20


def test_displacing_for_the_urgent_is_no_want_of_blocks() -> None:
    plant = Plant(STEADY, target_s=10.0)
    controller = plant.runner._limits.controller
    assert controller is not None
    plant.add_decodes(4)
    plant.plan()
    plant.runner._limits._for_others = 1
    plant.runner.scheduled({}, {}, ["d3"])
    assert controller._kv_seats is None


def test_the_course_of_the_limits_is_counted() -> None:
    plant = Plant(STEADY, target_s=T, known=STEADY)
    plant.add_decodes(20)
    plant.add_prompt()
    plant.run(50)
    counters = plant.runner.counters
    assert counters["limits_least_tokens"] == 20 + 752
    assert 772 <= counters["limits_mean_tokens"] <= 804
    assert counters["limits_lowered"] >= 1


def test_a_fault_of_the_controller_leaves_the_limits_of_the_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(StepCost):
        @override
        def __call__(self, shape: StepShape) -> float:
            raise ZeroDivisionError

    plant = Plant(STEADY, target_s=T, known=Broken(), settings={"max_num_batched_tokens": 512})
    plant.add_decodes(20)
    plant.add_prompt()
    assert plant.run(3)[-1] == 512 - 20
    assert plant.runner.counters["limits_faults"] == 1
    assert "the controller of limits failed" in caplog.text


@pytest.mark.parametrize("lag", [0, 1])
def test_it_settles_also_when_results_lag(lag: int) -> None:
    plant = Plant(STEADY, target_s=T, lag=lag)
    plant.add_decodes(20)
    plant.add_prompt()
    settled = plant.run(200)[-50:]
    assert max(settled) - min(settled) <= BLOCK
