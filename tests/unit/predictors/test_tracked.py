from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from batchpolicy.config import PredictorSpec
from batchpolicy.predictor import TRUTH, Arrivals, LengthDist
from batchpolicy_predictors.histories import TenantHistory
from batchpolicy_predictors.oracles import NoisyOracle, Oracle
from batchpolicy_predictors.plain import MaxTokens
from batchpolicy_predictors.tracked import Tracked


def answered(
    predictor: Tracked, n: int, *, seed: int = 0, priority: int = 0, told: bool = True
) -> Arrivals:
    """Answers come whose ceilings tell their lengths, or only seem to."""
    rng = np.random.default_rng(seed)
    lengths = np.rint(np.exp(rng.normal(5.0, 1.0, n))).astype(np.int64) + 1
    shown = lengths if told else rng.permutation(lengths)
    batch = Arrivals(
        [f"{seed}-{i}" for i in range(n)],
        np.full(n, 10),
        np.maximum(shown, lengths),
        ["t"] * n,
        # What the oracle takes for the truth.
        shown,
        priority=np.full(n, priority),
    )
    predictor.observe(batch, lengths)
    return batch


def two(*priorities: int) -> Arrivals:
    """A short one and a long one."""
    sizes, truth = np.array([1, 9]), np.array([3, 3000])
    ceilings, classes = np.array([9999, 9999]), np.array(priorities)
    return Arrivals(["a", "b"], sizes, ceilings, ["t", "t"], truth, priority=classes)


def noisy() -> Tracked:
    return Tracked(inner=NoisyOracle(log_sigma=0.3))


def test_a_good_predictor_is_taken_at_its_word() -> None:
    predictor = noisy()
    batch = answered(predictor, 300)
    assert predictor.record_of(0).tau > 0.7
    assert predictor.record_of(0).trust == 1.0
    said, inner = predictor.predict(batch), predictor.inner.predict(batch)
    assert np.array_equal(said.quantiles, inner.quantiles)
    assert predictor.counts() == {}


def test_on_drift_it_falls_silent_and_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    predictor = noisy()
    with caplog.at_level(logging.WARNING):
        answered(predictor, 300)
        answered(predictor, 300, seed=1, told=False)
        assert predictor.counts()["predictor_fallbacks"] == 1
        assert predictor.record_of(0).trust == 0.0
        # Not a word: policies have their order without predictions.
        assert not predictor.predict(two(0, 0)).known.any()
        answered(predictor, 600, seed=2)
    assert predictor.counts() == {"predictor_fallbacks": 1, "predictor_recoveries": 1}
    assert predictor.record_of(0).trust == 1.0
    assert ["fails" in one.getMessage() for one in caplog.records] == [True, False]
    assert "fails, and nothing is said for priority 0: tau" in caplog.text
    assert predictor.predict(two(0, 0)).known.all()


def test_in_between_quantiles_lie_between_both() -> None:
    predictor = Tracked(inner=NoisyOracle(log_sigma=0.3), tau_enough=1.0)
    batch = answered(predictor, 300)
    trust = predictor.record_of(0).trust
    assert 0.1 < trust < 1.0
    free = replace(batch, max_tokens=np.full(300, 10**6))
    inner = np.log(predictor.inner.predict(free).quantiles)
    said = np.log(predictor.predict(free).quantiles)
    history = TenantHistory()
    history.observe(batch, batch.max_tokens)
    # So far from the history to the prediction, on the scale of logarithms.
    expected = (1 - trust) * np.log(history.predict(free).quantiles) + trust * inner
    assert said == pytest.approx(expected)


def in_turn(predictor: Tracked, rounds: range, *, odd_is_told: bool) -> None:
    """Answers of two classes of one tenant."""
    for seed in rounds:
        answered(predictor, 10, seed=2 * seed, priority=0)
        answered(predictor, 10, seed=2 * seed + 1, priority=5, told=odd_is_told)


def test_a_class_that_drifts_falls_back_alone_and_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    predictor = noisy()
    with caplog.at_level(logging.WARNING):
        in_turn(predictor, range(40), odd_is_told=True)
        assert predictor.counts() == {}
        in_turn(predictor, range(40, 80), odd_is_told=False)
        assert predictor.record_of(5).trust == 0.0
        assert predictor.record_of(0).trust == 1.0
        # The same tenant, the same lengths, and the class decides.
        assert predictor.predict(two(0, 5)).known.tolist() == [True, False]
        assert predictor.predict(two(5, 0)).known.tolist() == [False, True]
        fine = predictor.predict(two(0, 0)).quantiles
        assert np.array_equal(fine, predictor.inner.predict(two(0, 0)).quantiles)
        assert predictor.counts() == {"predictor_fallbacks": 1}
        in_turn(predictor, range(80, 140), odd_is_told=True)
    assert predictor.record_of(5).trust == 1.0
    assert predictor.predict(two(0, 5)).known.all()
    assert predictor.counts() == {"predictor_fallbacks": 1, "predictor_recoveries": 1}
    assert ["for priority 5: tau" in one.getMessage() for one in caplog.records] == [True, True]


def test_a_class_of_which_little_is_known_trusts_as_all_together_do() -> None:
    predictor = noisy()
    answered(predictor, 50, priority=1)
    answered(predictor, 50, seed=1, priority=2)
    assert predictor.record_of(1) is predictor.record_of(2) is predictor.record_of(77)
    assert len(predictor.record_of(1).seen) == 100
    answered(predictor, 50, seed=2, priority=1)
    assert len(predictor.record_of(1).seen) == 100
    assert predictor.record_of(1) is not predictor.record_of(2)


def test_many_small_classes_fall_together_and_that_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    predictor = noisy()
    with caplog.at_level(logging.WARNING):
        for priority in range(30):
            answered(predictor, 20, seed=priority, priority=priority, told=False)
    assert predictor.counts() == {"predictor_fallbacks": 1}
    assert "for priorities of which few answers came: tau" in caplog.text
    assert not predictor.predict(two(3, 99)).known.any()


def test_classes_not_heard_of_for_longest_are_forgotten() -> None:
    predictor = Tracked(inner=NoisyOracle(log_sigma=0.3), most_classes=2)
    for seed, priority in enumerate([1, 2, 1, 3]):
        answered(predictor, 100, seed=seed, priority=priority)
    everybody = predictor.record_of(99)
    known = [predictor.record_of(priority) is not everybody for priority in (1, 2, 3)]
    assert known == [True, False, True]


def test_where_no_priority_is_told_all_are_of_one_class() -> None:
    predictor = noisy()
    batch = answered(predictor, 300)
    untold = replace(batch, priority=None)
    assert np.array_equal(predictor.predict(untold).quantiles, predictor.predict(batch).quantiles)
    predictor.observe(untold, batch.max_tokens)
    assert len(predictor.record_of(0).seen) == 256


def test_it_requires_what_the_inner_one_does_and_is_tracked_once() -> None:
    assert Tracked(inner=Oracle()).requires == {TRUTH}
    assert Tracked(inner=MaxTokens()).requires == frozenset()
    with pytest.raises(ValidationError, match="not tracked already"):
        Tracked(inner=Tracked(inner=MaxTokens()))


def test_it_is_read_from_a_file_with_its_inner_one() -> None:
    made = PredictorSpec(
        name="tracked", params={"inner": {"name": "noisy-oracle", "tau": 0.5}}
    ).build()
    assert isinstance(made, Tracked)
    assert made.inner == NoisyOracle(tau=0.5)


def test_of_what_the_inner_one_says_nothing_nothing_is_held_against_it() -> None:
    class Quiet(NoisyOracle):
        def predict(self, batch: Arrivals) -> LengthDist:
            return LengthDist.nothing(len(batch))

    predictor = Tracked(inner=Quiet())
    batch = answered(predictor, 300)
    assert not predictor.predict(batch).known.any()
    assert len(predictor.record_of(0).seen) == 0
    assert predictor.counts() == {}


def test_it_costs_what_the_inner_one_does_and_asks_it_again_about_answers() -> None:
    inner, tracked = MaxTokens(), Tracked(inner=MaxTokens())
    assert tracked.cost_s(1, 0) > inner.cost_s(1, 0)
    assert tracked.cost_s(0, 1) > inner.cost_s(1, 0)
