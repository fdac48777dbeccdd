"""What predictors promise after any answers: usable quantiles, and the same for the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.predictor import Arrivals, Predictor
from batchpolicy_predictors.gradient_boosting import GradientBoosting
from batchpolicy_predictors.histories import HistoryConditional, TenantHistory
from batchpolicy_predictors.samples import between, cut_quantiles, sample_quantiles
from batchpolicy_predictors.template_neighbours import TemplateNeighbours
from batchpolicy_predictors.tracked import Tracked
from tests.support.small_model import saved, small_model

ROWS = st.tuples(
    st.integers(1, 5000),  # prompt
    st.integers(1, 2000),  # ceiling
    st.integers(0, 2500),  # answer
    st.sampled_from(["", "a", "b"]),
    st.lists(st.integers(0, 2**31), max_size=80),
)
BATCHES = st.lists(st.lists(ROWS, max_size=6), min_size=1, max_size=12)
KINDS = ["tenant", "all", "neighbours", "boosting", "tracked"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"), small_model(uses_history=True))


def made(kind: str, model: Path) -> Predictor:
    boosting = GradientBoosting(model=model)
    predictors: dict[str, Predictor] = {
        "tenant": TenantHistory(window=8, most_tenants=1),
        "all": HistoryConditional(window=8),
        "neighbours": TemplateNeighbours(memory=16, neighbours=4),
        "boosting": boosting,
        "tracked": Tracked(inner=boosting, window=32, least_answers=16),
    }
    return predictors[kind]


def batch(rows: list[tuple[int, int, int, str, list[int]]]) -> Arrivals:
    prompt, ceiling, _, tenant, ids = zip(*rows, strict=True) if rows else ((),) * 5
    return Arrivals(
        [f"{i}" for i in range(len(rows))],
        np.array(prompt, dtype=np.int64),
        np.array(ceiling, dtype=np.int64),
        list(tenant),
        None,
        list(ids),
        priority=np.array(prompt, dtype=np.int64) % 2,
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(batches=BATCHES)
def test_quantiles_are_usable_after_any_answers_and_repeat(
    kind: str, model: Path, batches: list[list[tuple[int, int, int, str, list[int]]]]
) -> None:
    one, other = made(kind, model), made(kind, model)
    for rows in batches:
        asked, answers = batch(rows), np.array([row[2] for row in rows], dtype=np.int64)
        said = one.predict(asked).quantiles
        assert np.array_equal(said, other.predict(asked).quantiles, equal_nan=True)
        if kind == "tracked":
            # Of a class for which it has failed it says nothing, of no request a part.
            silent = np.isnan(said).all(axis=1)
            classes = [prompt % 2 for prompt, *_ in rows]
            assert len(set(zip(classes, silent.tolist(), strict=True))) <= 2
            said, asked = said[~silent], asked.take(np.flatnonzero(~silent))
        assert np.isfinite(said).all()
        assert (np.diff(said, axis=1) >= 0).all()
        assert (said >= 1).all()
        assert (said <= asked.max_tokens[:, None]).all()
        for predictor in (one, other):
            predictor.observe(batch(rows), answers)


VALUES = st.lists(st.floats(1, 1e6), min_size=1, max_size=40)


@given(VALUES, st.data())
def test_quantiles_of_answers_lie_among_them_and_cut_ones_only_add(
    values: list[float], data: st.DataObject
) -> None:
    cut = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    plain, found = sample_quantiles(np.sort(values)), cut_quantiles(np.array(values), cut)
    assert (np.diff(found) >= 0).all()
    assert found.min() >= min(values)
    assert found.max() <= max(values)
    # Who was cut would have become longer.
    assert (found >= plain * (1 - 1e-9)).all()


@given(VALUES, VALUES, st.floats(0, 1))
def test_between_two_quantiles_is_between_them_and_ascends(
    one: list[float], other: list[float], weight: float
) -> None:
    n = min(len(one), len(other))
    low, high = np.sort(one[:n]), np.sort(other[:n])
    found = between(low, high, weight)
    assert (np.diff(found) >= 0).all()
    assert (found >= np.minimum(low, high) * (1 - 1e-9)).all()
    assert (found <= np.maximum(low, high) * (1 + 1e-9)).all()
    assert np.array_equal(between(low, high, 0.0), low)
    assert np.array_equal(between(low, high, 1.0), high)
