from __future__ import annotations

import numpy as np
import pytest

from batchpolicy_predictors.histories import HistoryConditional, TenantHistory
from tests.unit.predictors.batches import batch, median, told


def test_a_tenant_is_known_by_its_own_answers_and_others_by_everybodys() -> None:
    history = TenantHistory()
    told(history, [10] * 40, "short")
    told(history, [1000] * 40, "long")
    assert median(history, "short") == 10
    assert median(history, "long") == 1000
    # 40 of each: the middle lies between.
    assert 10 < median(history, "new") < 1000
    assert median(history, "") == median(history, "new")


def test_a_tenant_of_few_answers_counts_as_much_as_it_has() -> None:
    history = TenantHistory()
    told(history, [100] * 200)
    told(history, [400] * 16, "half known")
    # Half way in logarithms; everybody's median is still 100.
    assert median(history, "half known") == pytest.approx(200)


def test_a_cold_start_is_wide_and_around_the_guess() -> None:
    said = TenantHistory(first_guess_tokens=300).predict(batch())
    assert said.quantile(0.5).tolist() == pytest.approx([300.0])
    assert said.quantile(0.9)[0] > 900


def test_ceilings_cut_predictions_and_count_where_they_cut_answers() -> None:
    history = HistoryConditional()
    told(history, [64] * 50)
    assert median(history, ceiling=20) == 20
    for _ in range(150):
        history.observe(batch(ceiling=16), np.array([16]))
    # All that the short ones tell is that they would have been longer than 16.
    assert median(history) == 64


def test_the_tenant_not_heard_of_for_longest_is_forgotten() -> None:
    history = TenantHistory(most_tenants=2)
    told(history, [10] * 40, "a")
    told(history, [20] * 40, "b")
    told(history, [10], "a")
    told(history, [30] * 40, "c")
    assert median(history, "a") == 10
    assert median(history, "c") == 30
    assert median(history, "b") == median(history, "never seen")


def test_only_the_latest_answers_count() -> None:
    history = HistoryConditional(window=50)
    told(history, [1000] * 100)
    told(history, [10] * 50)
    assert HistoryConditional(window=50) == history  # state is no parameter
    assert median(history) == 10


def test_an_answer_that_goes_on_is_expected_by_those_that_went_on_as_long() -> None:
    history = HistoryConditional()
    told(history, [10, 1000] * 100)
    said = history.predict(batch())
    assert said.quantile(0.1)[0] == 10
    assert said.given(np.array([500])).quantile(0.5)[0] == pytest.approx(1000, rel=0.01)


def test_all_tenants_of_a_batch_learn_from_it() -> None:
    history = TenantHistory()
    history.observe(batch(80, tenant=["a", "b"] * 40), np.array([10, 90] * 40))
    assert (median(history, "a"), median(history, "b")) == (10, 90)
