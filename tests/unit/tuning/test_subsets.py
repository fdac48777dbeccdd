from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy_tuning.subsets import mean_interval, p_negative, ratio_interval, subsets

numbers = st.lists(st.integers(-50, 50).map(float), min_size=6, max_size=9)


def _all_subsets(n: int) -> list[list[int]]:
    """Rows of every nonempty subset, the slow and obvious way."""
    chosen = product((False, True), repeat=n)
    return [[i for i in range(n) if of[i]] for of in chosen if any(of)]


def test_of_few_pairs_all_subsets_are_taken() -> None:
    rows = {tuple(np.flatnonzero(row)) for row in subsets(5)}
    assert rows == {tuple(rows) for rows in _all_subsets(5)}


@pytest.mark.parametrize("n", [13, 20, 64])
def test_of_many_pairs_a_balanced_group_of_subsets_is_taken(n: int) -> None:
    chosen = subsets(n).astype(np.int64)
    words = {row.tobytes() for row in chosen}
    assert len(words) == len(chosen) == 2**12 - 1
    # The symmetric difference of two of them is one of them, or empty.
    rng = np.random.default_rng(0)
    for i, j in rng.integers(0, len(chosen), (200, 2)):
        assert i == j or (chosen[i] ^ chosen[j]).tobytes() in words
    # Each pair is in half of them, each two in a quarter, each three in an eighth.
    assert (chosen.sum(axis=0) == 2**11).all()
    assert {int((chosen[:, i] & chosen[:, j]).sum()) for i in range(n) for j in range(i)} == {
        2**10
    }
    for i, j, k in rng.choice(n, (50, 3)):
        if len({i, j, k}) == 3:
            assert (chosen[:, i] & chosen[:, j] & chosen[:, k]).sum() == 2**9


@pytest.mark.parametrize("n", [1000, 3000])
def test_of_very_many_pairs_each_still_has_a_column_of_its_own(n: int) -> None:
    columns = {column.tobytes() for column in subsets(n).T}
    assert len(columns) == n


def _rejected(values: list[float], mean: float) -> bool:
    """Whether ``mean`` falls to the test of Student's t under all turns of sign, at 5%."""
    signs = np.array(list(product((1.0, -1.0), repeat=len(values))))
    turned = signs * (np.array(values) - mean)
    error = turned.std(axis=1, ddof=1) / np.sqrt(len(values))
    t = turned.mean(axis=1) / np.maximum(error, 1e-300)
    # The first row turns nothing.
    above = (t >= t[0] - 1e-9 * abs(t[0])).mean()
    below = (t <= t[0] + 1e-9 * abs(t[0])).mean()
    return bool(min(above, below) <= 0.025)


@settings(deadline=None)
@given(numbers)
def test_the_interval_holds_what_a_studentised_test_of_paired_differences_does_not_reject(
    values: list[float],
) -> None:
    low, high = (float(end) for end in mean_interval(np.array(values), 0.95))
    # Means of subsets are at least 1/72 apart.
    assert not _rejected(values, low + 1e-3) or low == high
    assert not _rejected(values, high - 1e-3) or low == high
    assert _rejected(values, low - 1e-3)
    assert _rejected(values, high + 1e-3)


@settings(deadline=None)
@given(numbers)
def test_the_interval_leaves_out_the_same_number_of_subset_means_at_either_end(
    values: list[float],
) -> None:
    n = len(values)
    means = sorted(sum(values[i] for i in rows) / len(rows) for rows in _all_subsets(n))
    left_out = int(0.025 * 2**n)  # 1 - 2 * left_out / 2^n is at least 95%
    low, high = mean_interval(np.array(values), 0.95)
    assert float(low) == pytest.approx(means[left_out - 1])
    assert float(high) == pytest.approx(means[-left_out])


@settings(deadline=None)
@given(numbers, st.integers(1, 20))
def test_the_interval_of_a_ratio_is_that_of_ratios_of_subset_sums(
    values: list[float], step: int
) -> None:
    under = [1.0 + step * i for i in range(len(values))]
    ratios = sorted(
        sum(values[i] for i in rows) / sum(under[i] for i in rows)
        for rows in _all_subsets(len(values))
    )
    left_out = int(0.05 * 2 ** len(values))
    low, high = ratio_interval(np.array(values), np.array(under), 0.9)
    assert float(low) == pytest.approx(ratios[left_out - 1])
    assert float(high) == pytest.approx(ratios[-left_out])


@settings(deadline=None)
@given(numbers)
def test_the_p_value_is_the_share_of_flipped_signs_that_reach_as_far(
    values: list[float],
) -> None:
    reached = sum(
        sum(sign * value for sign, value in zip(signs, values, strict=True)) <= sum(values)
        for signs in product((-1.0, 1.0), repeat=len(values))
    )
    assert float(p_negative(np.array(values))) == reached / 2 ** len(values)


@settings(deadline=None)
@given(numbers)
def test_interval_and_p_value_agree(values: list[float]) -> None:
    low, high = mean_interval(np.array(values), 0.95)
    assert (high < 0.0) == (p_negative(np.array(values)) <= 0.025)
    assert (low > 0.0) == (p_negative(-np.array(values)) <= 0.025)


def test_experiments_are_worked_out_column_by_column() -> None:
    values = np.random.default_rng(0).normal(size=(15, 700))
    low, high = mean_interval(values, 0.95)
    p = p_negative(values)
    for column in (0, 499, 500, 699):
        one = values[:, column]
        alone = [float(end) for end in mean_interval(one, 0.95)]
        assert (low[column], high[column]) == pytest.approx(alone)
        assert p[column] == p_negative(one)


def test_five_pairs_are_too_few_for_95_percent() -> None:
    low, high = mean_interval(np.arange(5.0), 0.95)
    assert np.isnan(low) and np.isnan(high)


@pytest.mark.parametrize("n", [8, 12, 20])
def test_the_level_is_exact_however_heavy_the_tails_are(n: int) -> None:
    rng = np.random.default_rng(n)
    values = rng.standard_cauchy((n, 4000))
    low, high = mean_interval(values, 0.95)
    nominal = 1.0 - 2.0 * int(0.025 * 2 ** min(n, 12)) / 2 ** min(n, 12)
    # Four standard errors of a share of 0.95 among 4,000 are 0.0138.
    assert abs(((low <= 0.0) & (high >= 0.0)).mean() - nominal) < 0.0138


def test_a_ratio_is_covered_however_much_the_pairs_differ() -> None:
    rng = np.random.default_rng(1)
    common = np.exp(rng.normal(0.0, 1.5, (20, 4000)))
    under, over = (common * np.exp(rng.normal(0.0, 0.3, common.shape)) for _ in range(2))
    low, high = ratio_interval(0.9 * over, under, 0.95)
    assert abs(((low <= 0.9) & (high >= 0.9)).mean() - 0.95) < 0.0138
