from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy_tuning.turned_signs import mean_interval, p_negative, ratio_interval, turns
from tests.support import turned

numbers = st.lists(st.integers(-50, 50).map(float), min_size=6, max_size=7)


def test_of_few_pairs_all_turns_are_taken() -> None:
    assert {tuple(row) for row in turns(5)} == set(product((1.0, -1.0), repeat=5))
    assert (turns(5)[0] == 1.0).all()


@pytest.mark.parametrize("n", [13, 20, 64])
def test_of_many_pairs_a_balanced_group_of_turns_is_taken(n: int) -> None:
    signs = turns(n)
    words = {row.tobytes() for row in signs + 0.0}
    assert len(words) == len(signs) == 2**10
    assert (signs[0] == 1.0).all()
    # The product of two of them is one of them.
    rng = np.random.default_rng(0)
    for i, j in rng.integers(0, len(signs), (200, 2)):
        assert (signs[i] * signs[j]).tobytes() in words
    # The sign of each pair, and the products of two and of three, are as often 1 as -1.
    assert not signs.sum(axis=0).any()
    assert not (np.triu(signs.T @ signs, 1)).any()
    for i, j, k in rng.choice(n, (50, 3)):
        if len({i, j, k}) == 3:
            assert (signs[:, i] * signs[:, j] * signs[:, k]).sum() == 0


def test_of_very_many_pairs_each_still_has_a_column_of_its_own() -> None:
    assert len({column.tobytes() for column in turns(1000).T}) == 1000


@settings(deadline=None, max_examples=15)
@given(numbers)
def test_the_p_value_is_the_share_of_turned_signs_with_less_and_half_of_equals(
    values: list[float],
) -> None:
    assert float(p_negative(np.array(values))) == pytest.approx(turned.p_negative(values))


@settings(deadline=None, max_examples=25)
@given(numbers)
def test_the_ends_are_the_last_means_that_are_not_rejected(values: list[float]) -> None:
    low, high = mean_interval(np.array(values), 0.95)
    reach = max(values) - min(values)
    for end, out in ((low, -1.0), (high, 1.0)):
        assert min(values) <= end <= max(values)
        further = end + out * reach * np.array([0.0, 1e-6, 0.05, 0.1, 0.3, 1.0])
        p = p_negative(out * (np.array(values)[:, None] - further))
        assert p[0] > 0.025
        assert (p[1:] <= 0.025).all() or not reach


@settings(deadline=None, max_examples=15)
@given(numbers, st.integers(1, 20))
def test_a_ratio_is_in_the_interval_as_a_mean_difference_of_0_is(
    values: list[float], step: int
) -> None:
    under = np.array([1.0 + step * i for i in range(len(values))])
    low, high = ratio_interval(np.array(values), under, 0.9)
    for end in (low, high):
        off = np.array(values) - end * under
        assert min(p_negative(off), p_negative(-off)) > 0.05
    assert p_negative(high * under + 1e-6 * under - np.array(values)) > 0.05


@settings(deadline=None, max_examples=25)
@given(numbers)
def test_what_is_not_rejected_is_inside(values: list[float]) -> None:
    low, high = mean_interval(np.array(values), 0.95)
    if p_negative(np.array(values)) > 0.025 and p_negative(-np.array(values)) > 0.025:
        assert low <= 1e-9 and high >= -1e-9


def test_experiments_are_worked_out_column_by_column() -> None:
    values = np.random.default_rng(0).normal(size=(15, 700))
    p = p_negative(values)
    for column in (0, 199, 200, 699):
        assert p[column] == p_negative(values[:, column])


def test_equal_values_have_an_interval_of_one_point() -> None:
    assert mean_interval(np.full(9, 0.1), 0.95) == (0.1, 0.1)
    assert float(p_negative(np.zeros(9))) == 0.5
    assert float(p_negative(np.full(9, -0.1))) == 0.5 / 2**9


def test_four_pairs_are_too_few_for_95_percent() -> None:
    assert all(map(math.isnan, mean_interval(np.arange(4.0), 0.95)))
    assert not any(map(math.isnan, mean_interval(np.arange(5.0), 0.95)))


def _covered(off: np.ndarray) -> float:
    return float((np.minimum(p_negative(off), p_negative(-off)) > 0.025).mean())


# Four standard errors of a share of 0.95 among 4,000 are 0.0138.


@pytest.mark.parametrize("n", [8, 12, 20])
def test_the_level_is_exact_however_heavy_the_tails_are(n: int) -> None:
    values = np.random.default_rng(n).standard_cauchy((n, 4000))
    assert abs(_covered(values) - 0.95) < 0.0138


def test_a_ratio_is_covered_however_much_the_pairs_differ() -> None:
    rng = np.random.default_rng(1)
    common = np.exp(rng.normal(0.0, 1.5, (20, 4000)))
    under, over = (common * np.exp(rng.normal(0.0, 0.3, common.shape)) for _ in range(2))
    assert abs(_covered(0.9 * over - 0.9 * under) - 0.95) < 0.0138


def test_a_skewed_effect_is_covered_better_than_by_student() -> None:
    off = np.random.default_rng(2).exponential(1.0, (20, 4000)) - 1.0
    # 0.917 against turned signs without the transformation.
    assert _covered(off) > 0.93


def test_ties_do_not_make_differences_of_whole_numbers_harder_to_find() -> None:
    off = np.round(np.random.default_rng(3).normal(0.0, 0.9, (20, 4000)))
    # 0.978 where ties count in full.
    assert abs(_covered(off) - 0.95) < 0.0138
