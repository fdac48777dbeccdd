from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.predictor import LEVELS
from batchpolicy_predictors.samples import (
    Window,
    between,
    cut_quantiles,
    guessed,
    sample_quantiles,
)


def test_the_next_of_nine_is_within_the_ninth_with_a_chance_of_nine_tenths() -> None:
    found = sample_quantiles(np.arange(1.0, 10.0))
    assert found[LEVELS == 0.9].tolist() == pytest.approx([9.0])
    assert found[LEVELS == 0.5].tolist() == pytest.approx([5.0])
    # Beyond the largest nothing is known.
    assert found[LEVELS == 0.99].tolist() == [9.0]


def test_without_cut_answers_the_estimate_is_the_plain_one() -> None:
    values = np.array([5.0, 1.0, 3.0, 3.0])
    assert np.array_equal(
        cut_quantiles(values, np.zeros(4, dtype=bool)), sample_quantiles(np.sort(values))
    )


def test_what_cut_answers_would_have_become_is_taken_from_longer_ones() -> None:
    # Of 10, 20 (cut), 30, 40: a quarter ends at 10; the cut one's quarter goes to 30 and 40.
    values, cut = np.array([40.0, 20.0, 10.0, 30.0]), np.array([False, True, False, False])
    # Ended: 0.25 at 10, 0.625 at 30, 1 at 40; times 4/5.
    expected = np.interp(LEVELS, [0.2, 0.2, 0.5, 0.8], [10.0, 20.0, 30.0, 40.0])
    assert cut_quantiles(values, cut) == pytest.approx(expected)


def test_if_all_were_cut_the_longest_is_what_is_known() -> None:
    assert cut_quantiles(np.array([5.0, 9.0]), np.array([True, True]))[4:].tolist() == (
        pytest.approx([9.0] * 5, rel=0.3)
    )


def test_half_way_between_quantiles_is_their_geometric_mean() -> None:
    assert between(np.array([1.0, 4.0]), np.array([4.0, 9.0]), 0.5) == pytest.approx([2.0, 6.0])


def test_a_window_forgets_its_guess_with_32_answers_and_the_oldest_beyond_its_size() -> None:
    window = Window(40, guessed(1000))
    for _ in range(31):
        window.add(10.0, False)
    window.settle()
    assert 10.0 < window.quantiles[4] < 20.0
    window.add(10.0, False)
    window.settle()
    assert window.quantiles.tolist() == [10.0] * 9
    for _ in range(40):
        window.add(20.0, False)
    window.settle()
    assert window.quantiles.tolist() == [20.0] * 9
    assert len(window) == 40
