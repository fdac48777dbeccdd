from __future__ import annotations

from itertools import combinations
from math import isnan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy_predictors.rank_metrics import concordance, kendall_tau

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30)


def test_by_hand() -> None:
    # Of six pairs five agree.
    assert kendall_tau(np.array([1, 2, 4, 3]), np.array([1, 2, 3, 4])) == pytest.approx(4 / 6)
    assert concordance(np.array([1, 2, 4, 3]), np.array([1, 2, 3, 4])) == pytest.approx(5 / 6)


@given(PAIRS)
def test_they_are_what_counting_pair_by_pair_gives(rows: list[tuple[int, int]]) -> None:
    agree = disagree = tied_one = tied_other = 0
    for (a, b), (c, d) in combinations(rows, 2):
        agree += (a - c) * (b - d) > 0
        disagree += (a - c) * (b - d) < 0
        tied_one += a == c and b != d
        tied_other += a != c and b == d
    one, other = np.array(rows).T
    scale = sqrt((agree + disagree + tied_one) * (agree + disagree + tied_other))
    tau = kendall_tau(one, other)
    assert isnan(tau) if not scale else tau == pytest.approx((agree - disagree) / scale)
    count = agree + disagree + tied_one
    index = concordance(one, other)
    assert isnan(index) if not count else index == pytest.approx((agree + tied_one / 2) / count)


def test_many_rows_are_thinned_out_evenly() -> None:
    many = np.arange(20_000)
    assert kendall_tau(many, many) == 1.0
    assert concordance(many, -many) == 0.0


def test_rows_beyond_one_block_are_all_compared() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 50, 900), rng.integers(0, 50, 900)
    scipy = pytest.importorskip("scipy.stats")
    assert kendall_tau(one, other) == pytest.approx(scipy.kendalltau(one, other).statistic)
