from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.predictor import LEVELS
from batchpolicy_predictors.weighing import BELIEVED, MOST, SHARES, Weighing, losses
from tests.support.small_model import losing

EVEN = losing(1.0, 1.0, 1.0, 1.0, 1.0)


def at(tokens: float, n: int = 1) -> np.ndarray:
    """Quantiles that know no doubt, shape (n, 9)."""
    return np.full((n, len(LEVELS)), tokens)


def test_losses_by_hand() -> None:
    found = losses(at(100.0), at(400.0), np.array([150.0]))
    assert found.shape == (1, len(SHARES), len(LEVELS))
    # Half way in logarithms lie 200, which is 50 too long.
    half = dict(zip(LEVELS.tolist(), found[0, 2].tolist(), strict=True))
    assert half[0.5] == pytest.approx(25.0)
    assert half[0.9] == pytest.approx(5.0)
    assert found[0, 0, LEVELS == 0.9] == pytest.approx([45.0])


def test_nothing_lost_more_nor_less_leaves_the_middle() -> None:
    assert Weighing(EVEN).weights == pytest.approx(np.full(len(LEVELS), 0.5))


def test_weights_by_hand() -> None:
    # 64 answers, each 0.02 above and below 1: behind by 64 * 0.02 and so on, at half a mean each.
    weighing = Weighing(losing(1.04, 1.02, 1.0, 0.98, 0.96))
    counts = np.exp(-0.5 * BELIEVED * np.array([0.08, 0.06, 0.04, 0.02, 0.0]))
    assert weighing.weights[0] == pytest.approx(float(SHARES @ counts / counts.sum()))


def test_each_level_goes_its_own_way() -> None:
    weighing = Weighing(EVEN)
    said, history = at(100.0), at(100.0)
    history[0, LEVELS == 0.9], said[0, LEVELS >= 0.9] = 100.0, 400.0
    for _ in range(200):
        weighing.add(history, said, np.array([100]), 100.0)
    assert weighing.weights[LEVELS == 0.9] == pytest.approx([0.0], abs=0.05)
    assert weighing.weights[LEVELS == 0.5] == pytest.approx([0.5])


def test_what_is_no_longer_so_is_forgotten() -> None:
    weighing = Weighing(EVEN)
    for right in (400, 100, 400):
        # Against as many answers as are remembered, all of them to the contrary.
        for _ in range(MOST):
            weighing.add(at(100.0), at(400.0), np.array([right]), 200.0)
        expected = 1.0 if right == 400 else 0.0
        assert weighing.weights == pytest.approx(np.full(len(LEVELS), expected), abs=0.01)


def test_answers_of_before_do_not_outweigh_those_that_are_shorter() -> None:
    weighing = Weighing(EVEN)
    weighing.add(at(1000.0, 100), at(4000.0, 100), np.full(100, 4000), 2000.0)
    weighing.add(at(10.0, 150), at(40.0, 150), np.full(150, 10), 20.0)
    # Of the median; too long a low quantile costs more, and too short a high one.
    assert weighing.weights[LEVELS == 0.5] == pytest.approx([0.0], abs=0.01)


def test_a_batch_of_answers_counts_as_they_do_one_by_one() -> None:
    rng = np.random.default_rng(0)
    history, said = (np.sort(rng.uniform(1, 500, (700, 9)), axis=1) for _ in range(2))
    tokens = rng.integers(1, 500, 700)
    together, each = Weighing(EVEN), Weighing(EVEN)
    together.add(history, said, tokens, 100.0)
    for row in range(700):
        some = slice(row, row + 1)
        each.add(history[some], said[some], tokens[some], 100.0)
    # Sums of the same numbers, begun at different places of the ring.
    assert together.weights == pytest.approx(each.weights)


@given(
    tokens=st.lists(st.integers(1, 10**6), max_size=40),
    scale=st.floats(1e-3, 1e6),
    lost=st.floats(0.0, 1e9),
)
def test_weights_stay_between_history_and_model(
    tokens: list[int], scale: float, lost: float
) -> None:
    weighing = Weighing(losing(lost, 0.0, lost, 0.0, lost))
    for one in tokens:
        weighing.add(at(1.0), at(1e6), np.array([one]), scale)
    assert ((weighing.weights >= 0.0) & (weighing.weights <= 1.0)).all()
