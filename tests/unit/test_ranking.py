from __future__ import annotations

import math

import numpy as np
import pytest

from batchpolicy.errors import PolicyContractError
from batchpolicy.policy import Ranking
from batchpolicy.runner.order import best_first

SEQ = np.arange(6)


def order(ranking: Ranking) -> list[int]:
    rows: list[int] = best_first(ranking.benefit, ranking.tier, SEQ, 6).tolist()
    return rows


def test_classes_go_before_tiers_and_tiers_before_benefit() -> None:
    benefit = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    classes, tiers = np.array([0, 0, 1, 1, 2, 2]), np.array([1, 0, 1, 0, 0, 0])
    assert order(Ranking(benefit).under(classes)) == [1, 0, 3, 2, 5, 4]
    assert order(Ranking(benefit, tiers).under(classes)) == [1, 0, 3, 2, 5, 4]
    assert order(Ranking(benefit[::-1].copy(), tiers).under(classes)) == [1, 0, 3, 2, 4, 5]


@pytest.mark.parametrize("bad", [-1, 1024])
def test_tiers_outside_of_a_thousand_cannot_nest(bad: int) -> None:
    usual, odd = np.zeros(6, dtype=np.int64), np.array([0, 0, 0, 0, 0, bad])
    with pytest.raises(PolicyContractError, match="expected 0 to 1023"):
        Ranking(np.zeros(6)).under(odd)
    with pytest.raises(PolicyContractError, match="expected 0 to 1023"):
        Ranking(np.zeros(6), odd).under(usual)
    with pytest.raises(PolicyContractError, match="expected 0 to 1023"):
        Ranking(np.zeros(6)).under(usual + 1).under(usual)


def test_no_rows_nest_as_well() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert len(Ranking(np.zeros(0), none).under(none).tier) == 0  # type: ignore[arg-type]


def test_some_rows_of_a_ranking_wake_when_all_do() -> None:
    assert Ranking(np.zeros(6), wake_s=3.0).take(np.array([1])).wake_s == 3.0
    assert Ranking(np.zeros(6)).wake_s == math.inf
