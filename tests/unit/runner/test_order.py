from __future__ import annotations

import numpy as np

from batchpolicy.runner.order import best_first

SEQ = np.arange(4)


def test_the_highest_benefit_goes_first() -> None:
    assert best_first(np.array([1.0, 3.0, -2.0, 2.0]), None, SEQ, 4).tolist() == [1, 3, 0, 2]


def test_a_lower_tier_goes_before_any_benefit() -> None:
    benefit, tier = np.array([1.0, 3.0, 0.0, 2.0]), np.array([0, 1, -1, 0])
    assert best_first(benefit, tier, SEQ, 4).tolist() == [2, 3, 0, 1]


def test_equals_go_in_order_of_submission_wherever_they_are_cut() -> None:
    seq = np.array([7, 3, 5, 1])
    for k in range(5):
        assert best_first(np.zeros(4), None, seq, k).tolist() == [3, 1, 2, 0][:k]


def test_nobody_is_chosen_from_nobody() -> None:
    none = np.array([], dtype=np.float64)
    assert best_first(none, None, np.array([], dtype=np.int64), 3).tolist() == []
    assert best_first(np.ones(4), None, SEQ, 0).tolist() == []
    assert best_first(np.ones(4), None, SEQ, -1).tolist() == []
