from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy_tuning.statistics import Verdict, compare, holm
from tests.support import turned

values = st.lists(st.floats(0.01, 1000.0), min_size=8, max_size=20)


def test_the_interval_ends_where_the_test_of_turned_signs_begins_to_reject() -> None:
    gains = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    found = compare([10.0] * 9, [10.0 - gain for gain in gains])
    assert found.improvement == 5.0
    for end, out in ((found.low, -0.001), (found.high, 0.001)):
        sign = math.copysign(1.0, out)
        assert turned.p_negative([sign * (gain - end) for gain in gains]) > 0.025
        assert turned.p_negative([sign * (gain - end - out) for gain in gains]) <= 0.025
    # The gains are symmetric about 5.
    assert found.high == pytest.approx(10.0 - found.low)
    relative = found.relative_low, found.relative_high
    assert relative == pytest.approx((found.low / 10.0, found.high / 10.0))
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


def test_equal_arms_are_equivalent_and_a_constant_gain_is_shown() -> None:
    same = compare([3.0] * 10, [3.0] * 10)
    assert (same.verdict, same.low, same.high) == (Verdict.EQUIVALENT, 0.0, 0.0)
    constant = compare([3.0] * 10, [2.0] * 10)
    assert (constant.verdict, constant.low, constant.high) == (Verdict.BETTER, 1.0, 1.0)


def test_last_digits_are_no_gain() -> None:
    found = compare([0.1 + 0.2] * 10, [0.3] * 10)
    assert (found.verdict, found.improvement) == (Verdict.EQUIVALENT, 0.0)


def test_pairs_in_which_an_arm_has_no_value_are_left_out() -> None:
    baseline = [2.0] * 9 + [math.nan]
    found = compare(baseline, [1.0, 1.1] * 5)
    assert found.pairs == 9
    assert compare(baseline[:7] + [math.nan] * 3, [1.0] * 10).reason == "7 pairs, 8 needed"
    assert compare([math.nan] * 10, [1.0] * 10).reason == "no value in any pair"


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(80, 120), st.integers(-12, 12)), min_size=8, max_size=8),
    st.sampled_from([0.02, 0.05]),
    st.booleans(),
)
def test_equivalence_takes_two_one_sided_tests(
    drawn: list[tuple[int, int]], margin: float, in_points: bool
) -> None:
    baseline = [float(b) for b, _ in drawn]
    policy = [float(b + d) for b, d in drawn]
    found = compare(baseline, policy, margin=margin, in_points=in_points)
    allowed = [margin * (1.0 if in_points else b) for b in baseline]
    gaps = [p - b for b, p in zip(baseline, policy, strict=True)]
    above = (
        turned.p_negative([gap - most for gap, most in zip(gaps, allowed, strict=True)]) <= 0.05
    )
    below = (
        turned.p_negative([-gap - most for gap, most in zip(gaps, allowed, strict=True)]) <= 0.05
    )
    assert found.within_margin == (not any(gaps) or (above and below))


def test_a_small_difference_that_is_shown_is_a_difference_and_within_the_margin() -> None:
    baseline = [100.0 + k for k in range(10)]
    found = compare(baseline, [1.01 * b + 0.01 * (k % 3) for k, b in enumerate(baseline)])
    assert (found.verdict, found.within_margin) == (Verdict.WORSE, True)
    noise = compare(baseline, [b + (-1.0) ** k for k, b in enumerate(baseline)])
    assert (noise.verdict, noise.within_margin) == (Verdict.EQUIVALENT, True)
    wide = compare(baseline, [b + 30.0 * (-1.0) ** k for k, b in enumerate(baseline)])
    assert (wide.verdict, wide.within_margin) == (Verdict.NOT_SHOWN, False)


def test_a_baseline_with_a_zero_has_no_relative_interval() -> None:
    found = compare([0.0] + [2.0] * 9, [1.0] * 10)
    assert math.isnan(found.relative_low) and math.isnan(found.relative_high)
    assert found.low < found.improvement < found.high


def test_an_arm_whose_requests_never_end_is_worse_although_there_is_no_interval() -> None:
    worse = compare([1.0] * 10, [math.inf] * 10)
    assert (worse.verdict, worse.reason) == (Verdict.WORSE, "without end in 10 of 10 pairs")
    assert math.isnan(worse.improvement) and math.isnan(worse.low)
    assert compare([math.inf] * 10, [1.0] * 10).verdict is Verdict.BETTER
    neither = compare([math.inf] * 10, [math.inf] * 10)
    assert (neither.verdict, neither.within_margin) == (Verdict.NOT_SHOWN, False)


def _by_all_intersections(p_values: list[float]) -> list[float]:
    """Holm as a closed test: the worst Bonferroni test of any group that a hypothesis is in."""
    n = len(p_values)
    groups = [of for k in range(1, n + 1) for of in combinations(range(n), k)]
    return [
        max(min(1.0, len(of) * min(p_values[j] for j in of)) for of in groups if i in of)
        for i in range(n)
    ]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 200).map(lambda k: k / 200), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(_by_all_intersections(p_values))


def test_holm_by_hand() -> None:
    # In order 0.01 * 4, 0.02 * 3, 0.03 * 2 raised to 0.06 and 0.2 * 1.
    assert holm([0.03, 0.2, 0.01, 0.02]) == pytest.approx([0.06, 0.2, 0.04, 0.06])
    assert holm([]) == []


def test_a_percentile_without_end_gives_no_interval() -> None:
    found = compare([1.0] * 10, [0.5] * 8 + [math.inf] * 2)
    assert found.verdict is Verdict.NOT_SHOWN
    assert found.reason == "without end in 2 of 10 pairs"
    assert math.isinf(found.policy)


@settings(deadline=None, max_examples=20)
@given(values, st.randoms(use_true_random=False))
def test_swapping_the_arms_turns_the_sign(baseline: list[float], random: object) -> None:
    policy = list(reversed(baseline))
    there, back = compare(baseline, policy), compare(policy, baseline)
    assert there.improvement == -back.improvement
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


@settings(deadline=None, max_examples=20)
@given(values, st.floats(-50.0, 50.0))
def test_a_shift_of_one_arm_shifts_its_interval(baseline: list[float], shift: float) -> None:
    policy = list(reversed(baseline))
    found, shifted = compare(baseline, policy), compare([b + shift for b in baseline], policy)
    assert shifted.improvement == pytest.approx(found.improvement + shift, abs=1e-6)
    assert shifted.low == pytest.approx(found.low + shift, abs=1e-6)
    assert shifted.high == pytest.approx(found.high + shift, abs=1e-6)


@settings(deadline=None, max_examples=20)
@given(values, st.floats(-50.0, 50.0))
def test_what_both_arms_share_plays_no_part(baseline: list[float], shift: float) -> None:
    policy = list(reversed(baseline))
    found = compare(baseline, policy)
    moved = compare([b + shift for b in baseline], [p + shift for p in policy])
    assert (moved.low, moved.high) == pytest.approx((found.low, found.high), abs=1e-6)


def test_intervals_cover_the_true_gain_in_95_of_100_experiments() -> None:
    rng = np.random.default_rng(1)
    experiments, covered = 200, 0
    for _ in range(experiments):
        common = rng.normal(50.0, 20.0, 10)
        found = compare(common + rng.normal(1.0, 3.0, 10), common + rng.normal(0.0, 2.0, 10))
        covered += found.low <= 1.0 <= found.high
    # Three standard errors of a share of 0.95 among 200 are 0.046.
    assert abs(covered / experiments - 0.95) < 0.046
