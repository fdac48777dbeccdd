from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from batchpolicy.config import load_config
from batchpolicy.errors import ConfigError
from batchpolicy.predictor import LEVELS
from batchpolicy_predictors.gradient_boosting import GradientBoosting
from batchpolicy_predictors.residuals import Residuals
from tests.support.small_model import ensemble, losing, one_question, saved, small_model
from tests.unit.predictors.batches import batch


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return saved(tmp_path)


def medians(predictor: GradientBoosting, **facts: object) -> list[float]:
    n = int(str(facts.pop("n", 1)))
    return predictor.predict(batch(n, **facts)).quantile(0.5).tolist()  # type: ignore[arg-type]


def test_trees_say_where_a_length_is_expected_and_errors_how_far_off(small: Path) -> None:
    predictor = GradientBoosting(model=small)
    assert medians(predictor, prompt=100) == pytest.approx([50.0])
    assert medians(predictor, prompt=101) == pytest.approx([200.0])
    said = predictor.predict(batch(prompt=101)).quantiles[0]
    # Errors lie evenly between -1 and 1, half a logarithm each; of 64 the k-th is at k/65.
    error = 2 * (0.9 * 65 - 0.5) / 64 - 1
    assert said[LEVELS == 0.9] == pytest.approx([200 * np.exp(0.5 * error)], rel=1e-3)


def test_token_ids_count_if_they_are_those_of_the_training(small: Path) -> None:
    predictor = GradientBoosting(model=small)
    ids = [[7] * 4]
    # The token scores log 2 at the head, four times; of 14 tokens and pairs.
    expected = 50 * np.exp(4 * np.log(2.0) / np.sqrt(14))
    assert medians(predictor, ids=ids) == pytest.approx([expected])
    others = replace(batch(ids=ids), id_space="words-1")
    assert predictor.predict(others).quantile(0.5) == pytest.approx([50.0])
    mixed = predictor.predict(batch(3, ids=[[7] * 4, [], [7] * 4])).quantile(0.5)
    assert mixed == pytest.approx([expected, 50.0, expected])


def test_a_bias_goes_as_answers_come_and_without_online_it_stays(small: Path) -> None:
    online, fixed = GradientBoosting(model=small), GradientBoosting(model=small, online=False)
    rng = np.random.default_rng(0)
    for tokens in np.rint(150 * np.exp(0.3 * rng.standard_normal(600))).astype(np.int64):
        for predictor in (online, fixed):
            predictor.observe(batch(), np.array([tokens]))
    assert medians(online) == pytest.approx([150.0], rel=0.05)
    assert medians(fixed) == pytest.approx([50.0])
    high = online.predict(batch()).quantile(0.9)[0]
    assert high == pytest.approx(150 * np.exp(0.3 * 1.2816), rel=0.08)
    assert online.counts() == {"predictor_shifts": 1}
    assert fixed.counts() == {"predictor_shifts": 0}


def test_errors_of_rows_with_and_without_ids_are_kept_apart(small: Path) -> None:
    predictor = GradientBoosting(model=small)
    for _ in range(200):
        predictor.observe(batch(2, ids=[[5] * 4, []]), np.array([500, 50]))
    assert medians(predictor, n=2, ids=[[5] * 4, []]) == pytest.approx([500.0, 50.0], rel=0.01)


def test_history_counts_where_the_model_was_trained_with_it(tmp_path: Path) -> None:
    asks = one_question("history_log_median", float(np.log(300)), np.log(50), np.log(200))
    made = small_model(uses_history=True)
    path = saved(tmp_path, replace(made, plain=ensemble(asks)))
    predictor = GradientBoosting(model=path, online=False)
    assert medians(predictor, tenant="a") == pytest.approx([50.0])  # 100 in training
    for _ in range(40):
        predictor.observe(batch(tenant="a"), np.array([800]))
    assert medians(predictor, tenant="a") == pytest.approx([200.0])
    path = saved(tmp_path, replace(made, plain=ensemble(asks), uses_history=False))
    without = GradientBoosting(model=path, online=False)
    without.recall(batch(tenant="a"), np.array([800]))
    assert medians(without, tenant="a") == pytest.approx([50.0])


def test_quantiles_lie_between_those_of_the_history_and_of_the_trees(tmp_path: Path) -> None:
    made = small_model()
    half = replace(made, plain=replace(made.plain, losses=losing(20.0, 10.0, 0.0, 10.0, 20.0)))
    predictor = GradientBoosting(model=saved(tmp_path, half), online=False)
    # Half way in logarithms from what answers were in training to the 50 of the trees.
    assert medians(predictor, tenant="a") == pytest.approx([np.sqrt(100 * 50)])
    for _ in range(40):
        predictor.observe(batch(tenant="a"), np.array([800]))
    assert medians(predictor, tenant="a") == pytest.approx([200.0])
    # With ids the trees alone.
    assert medians(predictor, tenant="a", ids=[[5] * 4]) == pytest.approx([50.0])


def test_a_model_that_does_not_fit_the_answers_leaves_them_to_the_history(tmp_path: Path) -> None:
    predictor = GradientBoosting(model=saved(tmp_path))
    # Long prompts get 200 tokens and short ones 50 of the trees, and in truth the reverse.
    for _ in range(150):
        predictor.observe(batch(2, prompt=10, tenant="a"), np.array([200, 200]))
        predictor.observe(batch(2, prompt=200, tenant="b"), np.array([50, 50]))
    assert medians(predictor, prompt=10, tenant="a") == pytest.approx([200.0], rel=0.05)
    assert medians(predictor, prompt=200, tenant="b") == pytest.approx([50.0], rel=0.05)


def test_the_file_is_found_beside_the_policy_file_and_its_faults_have_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    saved(folder)
    policy = folder / "policy.yaml"
    text = "apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\npredictor:\n"
    named = "  name: gradient-boosting\n  model: small.bp\n"
    policy.write_text(text + named)
    monkeypatch.chdir(tmp_path)
    spec = load_config(policy).predictor
    assert spec is not None
    made = spec.build()
    assert isinstance(made, GradientBoosting)
    assert made.model == folder / "small.bp"
    (folder / "small.bp").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"policy.yaml:6: predictor.model: .*no model file"):
        load_config(policy)


def test_what_is_served_needs_no_library_of_the_training(small: Path) -> None:
    code = f"""
import sys
from batchpolicy_predictors.gradient_boosting import GradientBoosting
GradientBoosting(model={str(small)!r})
print([name for name in ("sklearn", "scipy", "plotly", "typer", "rich") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_errors_before_a_shift_are_forgotten_and_others_are_not() -> None:
    trained = np.linspace(-1.0, 1.0, 129)
    rng = np.random.default_rng(1)
    steady = Residuals(trained)
    steady.add(rng.uniform(-1, 1, 2000))
    assert steady.shifts == 0
    steady.add(rng.uniform(2, 4, 64))
    assert steady.shifts >= 1
    assert steady.quantiles[LEVELS == 0.5] == pytest.approx([3.0], abs=0.4)
