from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.runner.calibration import ENOUGH, Calibration
from batchpolicy.runner.lengths import FEW, LengthHistory
from batchpolicy.runner.safety import MOST, PULL, Safety

NONE = np.empty(0, dtype=np.int64)
HALF = np.array([0.5])


def history(*lengths: int) -> LengthHistory:
    made = LengthHistory(4096)
    for length in lengths:
        made.add(length)
    return made


def median(made: LengthHistory, age: float) -> float:
    return float(made.given(np.array([age]), HALF)[0, 0])


def test_before_any_answer_all_lengths_up_to_the_guess_are_possible() -> None:
    made = history()
    made.look(NONE)
    levels = np.array([0.2, 0.4, 0.6, 0.8])
    assert made.given(np.zeros(1), levels)[0].tolist() == [1024.0, 2048.0, 3072.0, 4096.0]


def test_after_some_answers_only_they_count_and_only_the_longer_ones_given_an_age() -> None:
    made = history(*range(10, 10 * (FEW + 1), 10))
    made.look(NONE)
    assert median(made, 0) == 160.0
    # Of 170 ... 320, sixteen, the eighth.
    assert median(made, 160) == 240.0


def test_who_is_older_than_all_before_is_expected_to_double() -> None:
    made = history(*[100] * FEW)
    made.look(NONE)
    assert median(made, 300) == 600.0


def test_running_answers_count_as_longer_than_they_are() -> None:
    # The product-limit estimate by hand: 32 ended at 10, 32 are at 50 and go on.
    made = history(*[10] * FEW)
    made.look(np.full(FEW, 50))
    found = made.given(np.zeros(1), np.array([0.25, 0.45, 0.75]))[0]
    # Half of all end at 10; beyond, nothing is known but the scale.
    assert found[0] == found[1] == 10.0
    assert found[2] == pytest.approx(10.0 * 0.5 / 0.25)


def test_only_the_latest_answers_are_remembered() -> None:
    made = history(*[5000] * 600, *[10] * 512)
    made.look(NONE)
    assert made.given(np.zeros(1), np.array([0.99]))[0, 0] == 10.0


def fitted(predicted: np.ndarray, true: np.ndarray) -> Calibration:
    made = Calibration()
    for one, other in zip(predicted.tolist(), true.tolist(), strict=True):
        made.add(one, int(other))
    return made


def test_predictions_that_are_right_stay_exactly_as_they_are() -> None:
    lengths = np.arange(100, 100 + 3 * ENOUGH)
    made = fitted(lengths, lengths)
    assert made.ready
    levels = np.array([0.1, 0.9])
    given = made.given(np.array([150.0, 977.0]), np.zeros(2), levels)
    assert given.tolist() == [[150.0, 150.0], [977.0, 977.0]]


def test_a_constant_factor_is_corrected() -> None:
    lengths = np.arange(100, 100 + 3 * ENOUGH)
    made = fitted(2 * lengths, lengths)
    assert made.given(np.array([400.0]), np.zeros(1), HALF)[0, 0] == pytest.approx(200, abs=2)


def test_predictions_that_say_nothing_become_the_history() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(100, 200, 400)
    made = fitted(rng.lognormal(3, 1, 400), true)
    levels = np.array([0.05, 0.5, 0.95])
    low, high = (made.given(np.array([m]), np.zeros(1), levels)[0] for m in (5.0, 100.0))
    assert low == pytest.approx(np.quantile(true, levels), rel=0.1)
    assert high == pytest.approx(low, rel=0.1)


def test_before_there_are_enough_answers_nothing_is_fitted() -> None:
    few = np.arange(1, ENOUGH)
    assert not fitted(few, few).ready


@pytest.mark.parametrize("answers", [ENOUGH, ENOUGH + 15, ENOUGH + 16, 511, 512, 600, 1111])
def test_a_fit_is_of_the_answers_up_to_when_it_was_due_whenever_somebody_asks(
    answers: int,
) -> None:
    rng = np.random.default_rng(1)
    true = rng.integers(100, 200, answers)
    predicted = true * rng.lognormal(0, 0.5, answers)

    def given(made: Calibration) -> list[float]:
        levels = np.array([0.05, 0.5, 0.95])
        found: list[float] = made.given(np.array([150.0]), np.zeros(1), levels)[0].tolist()
        return found

    # The fits of the first 64 answers, and then of the latest 512 after every 16.
    due = ENOUGH + (answers - ENOUGH) // 16 * 16
    at_once = fitted(predicted[max(due - 512, 0) : due], true[max(due - 512, 0) : due])
    at_once._stale, at_once._new = True, 0
    assert given(fitted(predicted, true)) == given(at_once)


def test_each_eviction_adds_safety_and_each_answer_without_takes_some_off() -> None:
    safety = Safety(0.95, 0.01)
    start = safety.deviations
    assert start == pytest.approx(1.645, abs=1e-3)
    safety.answered(True)
    assert safety.deviations == pytest.approx(start + 0.99 * PULL)
    for _ in range(99):
        safety.answered(False)
    # One in a hundred is what may be: it is where it was.
    assert safety.deviations == pytest.approx(start)


def test_the_safety_stays_within_its_bounds_and_without_a_rate_where_it_is() -> None:
    safety, fixed = Safety(0.95, 0.01), Safety(0.9, None)
    for _ in range(1000):
        safety.answered(True)
        fixed.answered(True)
    assert safety.deviations == MOST
    assert fixed.deviations == pytest.approx(1.2816, abs=1e-3)
    for _ in range(100_000):
        safety.answered(False)
    assert safety.deviations == 0.0


def test_the_safety_comes_to_rest_where_just_so_many_are_evicted() -> None:
    rng = np.random.default_rng(3)
    safety, evicted = Safety(0.5, 0.05), 0
    for i in range(20_000):
        # A world in which fewer are evicted the more is kept in hand.
        hit = bool(rng.random() < 0.3 * np.exp(-safety.deviations))
        evicted += hit * (i >= 5_000)
        safety.answered(hit)
    assert evicted / 15_000 == pytest.approx(0.05, abs=0.005)
