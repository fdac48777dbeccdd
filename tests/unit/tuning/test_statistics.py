from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy_tuning.statistics import Verdict, compare

values = st.lists(st.floats(0.01, 1000.0), min_size=8, max_size=20)


def test_the_interval_is_that_of_students_textbook() -> None:
    # Gains 1 to 9: mean 5, standard deviation 2.7386, error 0.91287; t(8) at 97.5% is 2.3060.
    found = compare([10.0] * 9, [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert found.improvement == 5.0
    assert (found.low, found.high) == pytest.approx((5 - 2.1051, 5 + 2.1051), abs=1e-4)
    assert (found.verdict, found.pairs, found.scale) == (Verdict.BETTER, 9, 10.0)


def test_more_is_better_where_the_metric_says_so() -> None:
    less, more = [1.0 + 0.01 * k for k in range(10)], [2.0 + 0.02 * k for k in range(10)]
    assert compare(less, more, higher_is_better=True).verdict is Verdict.BETTER
    assert compare(less, more, higher_is_better=False).verdict is Verdict.WORSE


def test_an_interval_over_zero_shows_nothing() -> None:
    found = compare([1.0, 2.0] * 5, [2.0, 1.0] * 5)
    assert found.verdict is Verdict.NOT_SHOWN
    assert found.low < 0.0 < found.high


def test_fewer_than_eight_pairs_get_no_verdict() -> None:
    found = compare([10.0] * 7, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6])
    assert (found.verdict, found.reason) == (Verdict.NOT_SHOWN, "7 pairs, 8 needed")
    assert found.low > 0.0


def test_without_a_queue_there_is_nothing_to_schedule() -> None:
    found = compare([10.0] * 10, [1.0] * 10, queued=False)
    assert found.verdict is Verdict.NOTHING_TO_SCHEDULE


def test_equal_arms_show_nothing_and_a_constant_gain_is_shown() -> None:
    same = compare([3.0] * 10, [3.0] * 10)
    assert (same.verdict, same.low, same.high) == (Verdict.NOT_SHOWN, 0.0, 0.0)
    constant = compare([3.0] * 10, [2.0] * 10)
    assert (constant.verdict, constant.low, constant.high) == (Verdict.BETTER, 1.0, 1.0)


def test_last_digits_are_no_gain() -> None:
    found = compare([0.1 + 0.2] * 10, [0.3] * 10)
    assert (found.verdict, found.improvement) == (Verdict.NOT_SHOWN, 0.0)


def test_pairs_in_which_an_arm_has_no_value_are_left_out() -> None:
    baseline = [2.0] * 9 + [math.nan]
    found = compare(baseline, [1.0, 1.1] * 5)
    assert found.pairs == 9
    assert compare(baseline[:7] + [math.nan] * 3, [1.0] * 10).reason == "7 pairs, 8 needed"
    assert compare([math.nan] * 10, [1.0] * 10).reason == "no value in any pair"


def test_a_percentile_without_end_gives_no_interval() -> None:
    found = compare([1.0] * 10, [0.5] * 8 + [math.inf] * 2)
    assert found.verdict is Verdict.NOT_SHOWN
    assert found.reason == "without end in 2 of 10 pairs"
    assert math.isinf(found.policy)


@given(values, st.randoms(use_true_random=False))
def test_swapping_the_arms_turns_the_sign(baseline: list[float], random: object) -> None:
    policy = list(reversed(baseline))
    there, back = compare(baseline, policy), compare(policy, baseline)
    assert there.improvement == -back.improvement
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


@given(values, st.floats(-50.0, 50.0))
def test_a_shift_of_one_arm_shifts_its_interval(baseline: list[float], shift: float) -> None:
    policy = list(reversed(baseline))
    found, shifted = compare(baseline, policy), compare([b + shift for b in baseline], policy)
    assert shifted.improvement == pytest.approx(found.improvement + shift, abs=1e-6)
    assert shifted.low == pytest.approx(found.low + shift, abs=1e-6)
    assert shifted.high == pytest.approx(found.high + shift, abs=1e-6)


@given(values, st.floats(-50.0, 50.0))
def test_what_both_arms_share_plays_no_part(baseline: list[float], shift: float) -> None:
    policy = list(reversed(baseline))
    found = compare(baseline, policy)
    moved = compare([b + shift for b in baseline], [p + shift for p in policy])
    assert (moved.low, moved.high) == pytest.approx((found.low, found.high), abs=1e-6)


def test_intervals_cover_the_true_gain_in_95_of_100_experiments() -> None:
    rng = np.random.default_rng(1)
    experiments, covered = 2000, 0
    for _ in range(experiments):
        common = rng.normal(50.0, 20.0, 20)
        found = compare(common + rng.normal(1.0, 3.0, 20), common + rng.normal(0.0, 2.0, 20))
        covered += found.low <= 1.0 <= found.high
    # Three standard errors of a share of 0.95 among 2,000 are 0.0146.
    assert abs(covered / experiments - 0.95) < 0.0146
