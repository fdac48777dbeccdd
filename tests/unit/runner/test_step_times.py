from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.runner.step_times import CorrectedCost, LearnedCost
from batchpolicy.step_cost import FormulaCost, StepShape

SMALL = StepShape(decodes=10, decode_context=5_000, sequences=10)


def test_it_comes_right_for_the_shapes_that_are_served() -> None:
    truth = FormulaCost(base_s=0.01, token_s=5e-5, decode_context_token_s=1e-7)
    learned = LearnedCost()
    shapes = [SMALL, SMALL.with_prefill(512), SMALL.with_prefill(128)]
    for _ in range(300):
        for shape in shapes:
            learned.observe(shape, truth(shape))
    for shape in (*shapes, SMALL.with_prefill(300)):
        assert learned(shape) == pytest.approx(truth(shape), rel=0.02)


def test_the_first_step_is_believed_and_each_later_one_by_half() -> None:
    learned = LearnedCost()
    learned.observe(SMALL, 0.02)
    assert learned(SMALL) == pytest.approx(0.02)
    learned.observe(SMALL, 0.04)
    assert learned(SMALL) == pytest.approx(0.03)


SHAPES = st.builds(
    StepShape,
    st.integers(0, 8192),
    st.floats(0, 1e9),
    st.just(0),
    st.integers(1, 256),
    st.integers(0, 500_000),
)


@given(st.lists(st.tuples(SHAPES, st.floats(1e-4, 2.0)), max_size=30), SHAPES)
def test_it_never_falls_with_more_work(seen: list[tuple[StepShape, float]], at: StepShape) -> None:
    learned = LearnedCost()
    for shape, seconds in seen:
        learned.observe(shape, seconds)
    here = learned(at)
    assert here >= 0.0
    for field in ("prefill_tokens", "attention", "decodes", "decode_context"):
        more = at._replace(**{field: getattr(at, field) * 2 + 1})
        assert learned(more) >= here


def test_a_given_cost_is_corrected_by_half_of_what_it_is_off_and_not_for_one_odd_step() -> None:
    corrected = CorrectedCost(FormulaCost(base_s=0.01))
    assert corrected(SMALL) == 0.01
    corrected.observe(SMALL, 0.02)
    assert corrected(SMALL) == pytest.approx(0.015)
    corrected.observe(SMALL, 60.0)
    # Four times too short, at most: halfway from 1.5 to 4.
    assert corrected(SMALL) == pytest.approx(0.0275)
    corrected.observe(StepShape(), 1.0)
    assert corrected(SMALL) == pytest.approx(0.0275)
