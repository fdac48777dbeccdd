from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from batchpolicy.predictor import LEVELS, Arrivals, LengthDist
from batchpolicy_predictors.oracles import NoisyOracle, Oracle
from batchpolicy_predictors.plain import Constant, MaxTokens
from batchpolicy_predictors.rank_metrics import kendall_tau


def line(slope: float) -> LengthDist:
    """Uniform between 0 and ``slope``, between the outer levels."""
    return LengthDist(slope * LEVELS[None, :])


def arrivals(*truth: int, ceiling: int = 1000) -> Arrivals:
    n = len(truth)
    return Arrivals(
        [f"r{i}" for i in range(n)], np.full(n, 10), np.full(n, ceiling), [""] * n, np.array(truth)
    )


def test_quantiles_are_linear_between_levels_and_constant_beyond() -> None:
    found = line(1000.0).quantile(np.array([0.0, 0.05, 0.3, 0.5, 0.95, 0.99, 1.0]))
    assert found[0] == pytest.approx([50, 50, 300, 500, 950, 990, 990])
    assert line(1000.0).quantile(0.5).tolist() == [500.0]


def test_the_mean_is_that_of_the_quantiles() -> None:
    # Constant at both ends: 50 for the lowest twentieth, 990 for the last hundredth.
    expected = 0.05 * 50 + 0.94 * (50 + 990) / 2 + 0.01 * 990
    assert line(1000.0).mean() == pytest.approx([expected])
    assert LengthDist.exactly([7, 9]).mean() == pytest.approx([7, 9])


def test_given_an_age_what_is_left_of_the_distribution_counts() -> None:
    # Past the median: the middle of what is left is at level 0.75.
    given_500 = line(1000.0).given(np.array([500]))
    assert given_500.quantile(0.5)[0] == pytest.approx(750)
    assert (given_500.quantiles > 500).all()


def test_who_has_outlived_the_distribution_is_expected_to_double() -> None:
    given_600 = LengthDist.exactly([500]).given(np.array([600]))
    assert given_600.quantile(0.5).tolist() == [1200.0]


@given(st.lists(st.floats(1, 1e6), min_size=9, max_size=9).map(sorted), st.integers(0, 2_000_000))
def test_what_is_given_ascends_and_lies_beyond_the_age(row: list[float], age: int) -> None:
    found = LengthDist(np.array([row])).given(np.array([age])).quantiles
    assert (np.diff(found) >= 0).all()
    assert (found > age).all()


@given(st.integers(1, 10**6), st.data())
def test_a_known_length_stays_known_until_it_is_reached(tokens: int, data: st.DataObject) -> None:
    age = data.draw(st.integers(0, tokens - 1))
    found = LengthDist.exactly([tokens]).given(np.array([age])).quantiles
    assert (found == tokens).all()


def test_plain_predictors_say_the_ceiling_or_their_number_below_it() -> None:
    assert MaxTokens().predict(arrivals(5, ceiling=80)).quantile(0.5).tolist() == [80.0]
    assert Constant(output_tokens=30).predict(arrivals(5, 5)).quantile(0.5).tolist() == [
        30.0,
        30.0,
    ]
    assert Constant(output_tokens=300).predict(arrivals(5, ceiling=80)).quantile(0.5).tolist() == [
        80.0
    ]


def test_the_oracle_knows_and_refuses_where_nobody_does() -> None:
    assert Oracle().predict(arrivals(5, 700)).quantile(0.5).tolist() == [5.0, 700.0]
    blind = Arrivals(["a"], np.array([1]), np.array([1]), [""])
    with pytest.raises(ValueError, match="only replays"):
        Oracle().predict(blind)


def test_the_noisy_oracle_errs_by_its_sigma_and_the_same_for_each_id() -> None:
    truth = [400] * 4000
    noisy = NoisyOracle(log_sigma=0.3).predict(arrivals(*truth, ceiling=10**6))
    errors = np.log(noisy.quantile(0.5) / 400)
    assert errors.mean() == pytest.approx(0.0, abs=0.02)
    assert errors.std() == pytest.approx(0.3, abs=0.02)
    again = NoisyOracle(log_sigma=0.3).predict(arrivals(*truth[:10], ceiling=10**6))
    assert np.array_equal(again.quantiles, noisy.quantiles[:10])
    # Calibrated in the error: a tenth of the truths lies above the 0.9 quantile.
    assert (noisy.quantile(0.9) < 400).mean() == pytest.approx(0.1, abs=0.02)


def test_without_noise_it_is_the_oracle() -> None:
    assert NoisyOracle(log_sigma=0.0).predict(arrivals(5, 700)).quantile(0.5).tolist() == [
        5.0,
        700.0,
    ]


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.6, 1.0])
def test_the_noisy_oracle_has_the_rank_correlation_that_was_asked_for(tau: float) -> None:
    rng = np.random.default_rng(5)
    truth = np.rint(np.exp(rng.normal(np.log(300.0), 0.8, 3000))).astype(int) + 1
    oracle = NoisyOracle(tau=tau, typical_tokens=300, typical_log_sigma=0.8)
    said = oracle.predict(arrivals(*truth, ceiling=10**6)).quantile(0.5)
    assert kendall_tau(said, truth) == pytest.approx(tau, abs=0.03)
    if tau < 1:  # spread like lengths
        assert np.log(said).std() == pytest.approx(0.8, abs=0.05)


def test_the_noisy_oracle_errs_in_one_way() -> None:
    with pytest.raises(ValidationError, match="two ways to err"):
        NoisyOracle(tau=0.5, log_sigma=0.5)
    usual = NoisyOracle().predict(arrivals(400, ceiling=10**6))
    assert np.array_equal(
        usual.quantiles, NoisyOracle(log_sigma=0.3).predict(arrivals(400, ceiling=10**6)).quantiles
    )


def test_taking_rows_of_a_batch_takes_all_that_is_known_of_them() -> None:
    batch = Arrivals(
        ["a", "b", "c"], np.array([1, 2, 3]), np.array([4, 5, 6]), ["x", "y", "z"],
        np.array([7, 8, 9]), [[1], [2, 2], []], "mine", np.array([0.1, 0.2, 0.3]),
        np.array([0, 1, 2]), np.array([10.0, 11.0, 12.0]), np.array([-1, 0, 5]),
    )  # fmt: skip
    some = batch.take(np.array([2, 0]))
    assert some.request_id == ["c", "a"]
    assert some.tenant == ["z", "x"]
    assert some.prompt_ids == [[], [1]]
    assert some.id_space == "mine"
    names = ("prompt_tokens", "max_tokens", "truth", "temperature", "turn", "hour", "priority")
    for name in names:
        assert getattr(some, name).tolist() == getattr(batch, name)[[2, 0]].tolist()
