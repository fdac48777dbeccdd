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
    predictor: Tracked, n: int, *, seed: int = 0, tenant: str = "", told: bool = True
) -> Arrivals:
    """Answers come whose ceilings tell their lengths, or only seem to."""
    rng = np.random.default_rng(seed)
    lengths = np.rint(np.exp(rng.normal(5.0, 1.0, n))).astype(np.int64) + 1
    shown = lengths if told else rng.permutation(lengths)
    batch = Arrivals(
        [f"{seed}-{i}" for i in range(n)],
        np.full(n, 10),
        np.maximum(shown, lengths),
        [tenant] * n,
        # What the oracle takes for the truth.
        shown,
    )
    predictor.observe(batch, lengths)
    return batch


def two(*tenants: str) -> Arrivals:
    """A short one and a long one."""
    sizes, truth = np.array([1, 9]), np.array([3, 3000])
    return Arrivals(["a", "b"], sizes, np.array([9999, 9999]), list(tenants), truth)


def noisy() -> Tracked:
    return Tracked(inner=NoisyOracle(log_sigma=0.3))


def test_a_good_predictor_is_taken_at_its_word() -> None:
    predictor = noisy()
    batch = answered(predictor, 300)
    assert predictor.record_of("").tau > 0.7
    assert predictor.trust_in([""]).tolist() == [1.0]
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
        assert predictor.trust_in([""]).tolist() == [0.0]
        # Not a word, of known tenants neither: policies have their order without predictions.
        assert not predictor.predict(two("", "a")).known.any()
        answered(predictor, 600, seed=2)
    assert predictor.counts() == {"predictor_fallbacks": 1, "predictor_recoveries": 1}
    assert predictor.trust_in([""]).tolist() == [1.0]
    assert ["fails" in one.getMessage() for one in caplog.records] == [True, False]
    assert "for all requests: tau" in caplog.text
    assert predictor.predict(two("", "a")).known.all()


def test_in_between_quantiles_lie_between_both() -> None:
    predictor = Tracked(inner=NoisyOracle(log_sigma=0.3), tau_enough=1.0)
    batch = answered(predictor, 300)
    (trust,) = set(predictor.trust_in(batch.tenant).tolist())
    assert 0.1 < trust < 1.0
    free = replace(batch, max_tokens=np.full(300, 10**6))
    inner = np.log(predictor.inner.predict(free).quantiles)
    said = np.log(predictor.predict(free).quantiles)
    history = TenantHistory()
    history.observe(batch, batch.max_tokens)
    # So far from the history to the prediction, on the scale of logarithms.
    expected = (1 - trust) * np.log(history.predict(free).quantiles) + trust * inner
    assert said == pytest.approx(expected)


def test_tenants_are_tracked_for_themselves() -> None:
    predictor = noisy()
    answered(predictor, 300, tenant="fine")
    answered(predictor, 300, seed=1, tenant="odd", told=False)
    answered(predictor, 600, seed=2, tenant="fine")
    fine, odd = predictor.trust_in(["fine", "odd"])
    assert fine == 1.0
    assert odd == 0.0
    # The latest answers of all were those of one tenant each time.
    assert predictor.counts() == {
        "predictor_fallbacks": 1,
        "predictor_recoveries": 1,
        "predictor_tenant_fallbacks": 1,
    }
    # Alike for all of a tenant: no order by length is left among them.
    odd_said = predictor.predict(two("odd", "odd")).quantiles
    assert np.array_equal(odd_said[0], odd_said[1])
    fine_said = predictor.predict(two("fine", "fine")).quantiles
    assert (fine_said[0] < fine_said[1]).all()
    # Who is new is trusted as all are.
    assert predictor.record_of("new") is predictor.record_of("")


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
    assert len(predictor.record_of("").seen) == 0
    assert predictor.counts() == {}


def test_it_costs_what_the_inner_one_does_and_asks_it_again_about_answers() -> None:
    inner, tracked = MaxTokens(), Tracked(inner=MaxTokens())
    assert tracked.cost_s(1, 0) > inner.cost_s(1, 0)
    assert tracked.cost_s(0, 1) > inner.cost_s(1, 0)
