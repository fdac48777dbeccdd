"""``knapsack`` against the best of all choices, with one resource and with two."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.picking import knapsack
from batchpolicy.requests import FloatArray, IntArray

ITEMS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), max_size=20)
PAIRS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12), st.integers(0, 12)), max_size=12
)


def most(gain: IntArray, demand: IntArray, left: IntArray) -> int:
    """The most that any choice gains, by dynamic programming over what is left."""
    best = np.zeros(tuple(left + 1), dtype=np.int64)
    for value, takes in zip(gain.tolist(), demand.tolist(), strict=True):
        if all(t <= most for t, most in zip(takes, left.tolist(), strict=True)):
            without = best[tuple(slice(0, n - t) for n, t in zip(best.shape, takes, strict=True))]
            into = tuple(slice(t, None) for t in takes)
            best[into] = np.maximum(best[into], without + value)
    return int(best.max())


def chosen(gain: IntArray, demand: IntArray, left: IntArray) -> int:
    """What our choice gains; rows in order of gain by the sum of the parts they take."""
    parts: FloatArray = (demand / left).sum(axis=1)
    order = np.argsort(-gain / np.maximum(parts, 1e-12), kind="stable")
    taken = knapsack(gain[order].astype(np.float64), demand[order], left)
    assert (demand[order][taken].sum(axis=0) <= left).all()
    return int(gain[order][taken].sum())


def test_the_programme_equals_trying_all_choices() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        gain, demand = rng.integers(0, 60, 6), rng.integers(0, 12, (6, 2))
        left = rng.integers(1, 20, 2)
        choices = np.array(list(product([False, True], repeat=6)))
        fits = (choices @ demand <= left).all(axis=1)
        assert most(gain, demand, left) == (choices @ gain)[fits].max()


@given(ITEMS, st.integers(1, 100))
@settings(max_examples=400, deadline=None)
def test_with_one_resource_it_gains_at_least_half_of_the_most(
    items: list[tuple[int, int]], left: int
) -> None:
    gain, demand = np.array(items, dtype=np.int64).reshape(-1, 2).T
    demand = demand.reshape(-1, 1)
    best = most(gain, demand, np.array([left]))
    assert 2 * chosen(gain, demand, np.array([left])) >= best


@given(PAIRS, st.integers(1, 30), st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_with_two_resources_it_gains_at_least_a_quarter(
    items: list[tuple[int, int, int]], blocks: int, tokens: int
) -> None:
    columns = np.array(items, dtype=np.int64).reshape(-1, 3)
    gain, demand, left = columns[:, 0], columns[:, 1:], np.array([blocks, tokens])
    assert 4 * chosen(gain, demand, left) >= most(gain, demand, left)


def ratios(kinds: int, seed: int) -> FloatArray:
    """Our gain by the most, over 1,000 random queues of 12 rows and two resources.

    A row takes up to half of each resource, and gains are independent of that; with
    ``kinds`` 2 a row is small in one resource or the other, as long prompts with short
    answers and short ones with long answers are.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(1000):
        left = rng.integers(20, 61, 2)
        demand = rng.integers(1, left // 2 + 1, (12, 2))
        if kinds == 2:
            small = rng.integers(0, 2, 12)
            demand[np.arange(12), small] = 1 + demand[np.arange(12), small] // 8
        gain = rng.integers(1, 100, 12)
        found.append(chosen(gain, demand, left) / most(gain, demand, left))
    return np.array(found)


@pytest.mark.parametrize(
    ("kinds", "worst", "low", "median"),
    [(1, 0.75, 0.86, 1.0), (2, 0.7, 0.91, 1.0)],
)
def test_the_ratio_with_two_resources_is_what_the_docs_say(
    kinds: int, worst: float, low: float, median: float
) -> None:
    found = ratios(kinds, seed=0)
    got = [found.min(), np.quantile(found, 0.05), np.median(found)]
    assert [round(float(x), 2) for x in got] == [worst, low, median]


def test_two_resources_void_the_half() -> None:
    gain = np.array([132, 41, 176, 176])
    demand = np.array([[5, 3], [2, 1], [14, 0], [1, 17]])
    left = np.array([20, 20])
    # The second keeps out both of the large ones, each of which gains more than the first two.
    assert most(gain, demand, left) == 132 + 176 + 176
    assert chosen(gain, demand, left) == 176
