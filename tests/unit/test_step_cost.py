from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from batchpolicy.step_cost import FormulaCost, StepShape

COEFFICIENTS = st.builds(
    FormulaCost,
    base_s=st.floats(1e-6, 1.0),
    weights_s=st.floats(0.0, 1.0),
    token_s=st.floats(0.0, 1e-2),
    sharpness=st.floats(1.0, 500.0),
    attention_pair_s=st.floats(0.0, 1e-6),
    prefill_context_token_s=st.floats(0.0, 1e-5),
    decode_context_token_s=st.floats(0.0, 1e-5),
    mixed_context_token_s=st.floats(0.0, 1e-5),
    sequence_s=st.floats(0.0, 1e-3),
)
COUNTS = st.integers(0, 1_000_000)
SHAPES = st.builds(
    StepShape, COUNTS, st.integers(0, 10**12).map(float), COUNTS, COUNTS, COUNTS, COUNTS
)


def test_a_step_without_tokens_takes_no_time() -> None:
    cost = FormulaCost(base_s=0.005, weights_s=0.006, sequence_s=0.1)
    assert cost(StepShape()) == 0.0
    assert cost(StepShape(sequences=3)) == 0.0


def test_reading_weights_and_computing_meet_by_the_power_mean() -> None:
    cost = FormulaCost(weights_s=0.003, token_s=0.001, sharpness=2.0)
    # 3 ms and 4 tokens of 1 ms are the legs of a right triangle.
    assert cost(StepShape(prefill_tokens=3, decodes=1)) == pytest.approx(0.005)


def test_sharpness_1_adds_them_and_a_large_one_takes_the_longer() -> None:
    shape = StepShape(prefill_tokens=4)
    total = FormulaCost(weights_s=0.003, token_s=0.001, sharpness=1.0)
    longer = FormulaCost(weights_s=0.003, token_s=0.001, sharpness=1000.0)
    assert total(shape) == pytest.approx(0.007)
    assert longer(shape) == pytest.approx(0.004)


def test_every_other_part_is_added() -> None:
    cost = FormulaCost(
        base_s=1.0,
        attention_pair_s=0.5,
        prefill_context_token_s=0.25,
        decode_context_token_s=0.125,
        sequence_s=2.0,
    )
    shape = StepShape(
        prefill_tokens=2,
        attention=10.0,
        prefill_context=4,
        decodes=1,
        decode_context=8,
        sequences=2,
    )
    assert cost(shape) == 1.0 + 5.0 + 1.0 + 1.0 + 4.0


@given(COEFFICIENTS, SHAPES, st.sampled_from(StepShape._fields), COUNTS)
def test_the_duration_never_falls_when_a_field_grows(
    cost: FormulaCost, shape: StepShape, field: str, more: int
) -> None:
    larger = shape._replace(**{field: getattr(shape, field) + more})
    assert cost(larger) >= cost(shape) * (1.0 - 1e-12)


@given(COEFFICIENTS, SHAPES)
def test_a_step_with_tokens_takes_time(cost: FormulaCost, shape: StepShape) -> None:
    assert (cost(shape) > 0.0) == (shape.prefill_tokens + shape.decodes > 0)


def test_decodes_beside_a_prefill_read_their_context_at_a_price_on_top() -> None:
    cost = FormulaCost(base_s=1.0, decode_context_token_s=0.5, mixed_context_token_s=0.25)
    decodes = StepShape(decodes=1, decode_context=8, sequences=1)
    assert cost(decodes) == 1.0 + 8 * 0.5
    assert cost(decodes._replace(prefill_tokens=1)) == 1.0 + 8 * 0.75


@given(COEFFICIENTS, SHAPES, st.floats(0.1, 10.0), st.floats(0.0, 1.0))
def test_an_adjusted_cost_is_the_scaled_one_plus_the_overhead_of_each_step(
    cost: FormulaCost, shape: StepShape, scale: float, overhead_s: float
) -> None:
    plain_s = cost(shape)
    expected_s = plain_s * scale + overhead_s if plain_s else 0.0
    assert cost.adjusted(scale, overhead_s)(shape) == pytest.approx(expected_s)


def test_coefficients_take_durations_with_units() -> None:
    assert FormulaCost.model_validate({"weights_s": "6ms"}) == FormulaCost(weights_s=0.006)


@pytest.mark.parametrize(
    "wrong",
    [
        {"weights_s": -1.0},
        {"weights_s": 1.0, "token_s": float("nan")},
        {"weights_s": 1.0, "sharpness": 0.5},
        {"weights_s": 1.0, "tokens_s": 1.0},
        {"token_s": 1.0},
    ],
)
def test_coefficients_that_make_no_cost_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        FormulaCost.model_validate(wrong)


def test_a_prompt_joins_a_step_with_the_context_it_has() -> None:
    shape = StepShape(prefill_context=100, decodes=3, decode_context=50, sequences=3)
    # 10 tokens see 100 cached ones each, and half of their own on average.
    assert shape.with_prefill(10) == StepShape(10, 1050.0, 100, 3, 50, 4)
    assert shape.with_prefill(0) == StepShape(decodes=3, decode_context=50, sequences=3)


@given(
    COEFFICIENTS,
    st.builds(StepShape, st.just(0), st.just(0.0), *[st.integers(0, 500)] * 4),
    st.floats(0.0, 2.0),
    st.integers(0, 300),
)
def test_the_inverse_is_the_largest_prompt_that_ends_in_time(
    cost: FormulaCost, shape: StepShape, seconds: float, most: int
) -> None:
    fitting = [n for n in range(1, most + 1) if cost(shape.with_prefill(n)) <= seconds]
    assert cost.prefill_within(seconds, shape, most) == max(fitting, default=0)
