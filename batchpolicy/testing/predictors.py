"""Promises of a predictor of output lengths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np

from batchpolicy.errors import PolicyContractError
from batchpolicy.predictor import LEVELS, TRUTH, Arrivals, LengthDist, Predictor
from batchpolicy.requests import FloatArray

PredictorCheck = Callable[[Predictor], None]


def predictor_checks() -> Iterator[PredictorCheck]:
    """The checks of predictors, most basic first."""
    yield check_parameters_survive
    yield check_quantiles_are_nine_numbers_a_row
    yield check_quantiles_ascend
    yield check_lengths_are_possible
    yield check_a_request_alone_is_predicted_as_in_a_batch
    yield check_predictions_repeat
    yield check_predicting_changes_nothing
    yield check_extremes_are_predicted
    yield check_no_requests_are_no_predictions


def check_predictor(predictor: Predictor) -> None:
    """Run every check; the predictor itself is left as it was.

    Raises
    ------
    PolicyContractError
        When it breaks a promise.
    """
    for check in predictor_checks():
        check(predictor)


def check_parameters_survive(predictor: Predictor) -> None:
    """Parameters written as JSON and read again make an equal predictor."""
    dumped = predictor.model_dump(mode="json", by_alias=True)
    if type(predictor).model_validate(json.loads(json.dumps(dumped))) != predictor:
        _fail(predictor, "loses parameters when they are written as JSON and read again")


def check_quantiles_are_nine_numbers_a_row(predictor: Predictor) -> None:
    """Shape ``(n, 9)``, finite, of 64-bit floats."""
    batch = _batch(predictor)
    found = _learned(predictor).predict(batch)
    if type(found) is not LengthDist:
        _fail(predictor, f"returned {type(found).__name__}, expected a LengthDist")
    found = LengthDist(np.asarray(found.quantiles))
    shape = (len(batch), len(LEVELS))
    if found.quantiles.shape != shape or found.quantiles.dtype != np.float64:
        got = f"{found.quantiles.shape} of {found.quantiles.dtype}"
        _fail(predictor, f"returned quantiles of shape {got}, expected {shape} of float64")
    if not np.isfinite(found.quantiles).all():
        _fail(predictor, "returned quantiles that are not finite")


def check_quantiles_ascend(predictor: Predictor) -> None:
    """No quantile is below that of a lower level."""
    if (np.diff(_predicted(predictor), axis=1) < 0).any():
        _fail(predictor, "returned quantiles that fall from one level to the next")


def check_lengths_are_possible(predictor: Predictor) -> None:
    """Between one token and ``max_tokens``."""
    batch = _batch(predictor)
    found = _predicted(predictor)
    if (found < 1.0).any():
        _fail(predictor, f"predicts {found.min():g} tokens, expected at least 1")
    over = found.max(axis=1) > batch.max_tokens
    if over.any():
        row = int(np.flatnonzero(over)[0])
        _fail(
            predictor,
            f"predicts {found[row].max():g} tokens where max_tokens is {batch.max_tokens[row]}",
        )


def check_a_request_alone_is_predicted_as_in_a_batch(predictor: Predictor) -> None:
    """Which other requests are asked about makes no difference."""
    batch, learned = _batch(predictor), _learned(predictor)
    together = learned.predict(batch).quantiles
    for row in range(len(batch)):
        alone = learned.predict(_rows(batch, [row])).quantiles
        if not np.allclose(alone[0], together[row], rtol=1e-9):
            _fail(predictor, f"row {row} alone is predicted otherwise than in a batch")
    back = learned.predict(_rows(batch, list(range(len(batch)))[::-1])).quantiles[::-1]
    if not np.allclose(back, together, rtol=1e-9):
        _fail(predictor, "predictions depend on the order of the batch")


def check_predictions_repeat(predictor: Predictor) -> None:
    """Two predictors told alike agree bit for bit."""
    if not np.array_equal(_predicted(predictor), _predicted(predictor)):
        _fail(predictor, "two predictors with the same parameters disagree")


def check_predicting_changes_nothing(predictor: Predictor) -> None:
    """Only ``observe`` changes what is predicted next."""
    learned, batch = _learned(predictor), _batch(predictor)
    first = learned.predict(batch).quantiles.copy()
    if not np.array_equal(first, learned.predict(batch).quantiles):
        _fail(predictor, "predicts otherwise when it is asked again")


def check_extremes_are_predicted(predictor: Predictor) -> None:
    """Prompts and ceilings of any size, and requests without a tenant."""
    sizes = np.array([1, 1, 2**20, 2**20])
    ceilings = np.array([1, 2**20, 1, 2**20])
    truth = np.array([1, 2**20, 1, 5]) if TRUTH in predictor.requires else None
    batch = Arrivals(["a", "b", "c", "d"], sizes, ceilings, ["", "", "x", "x"], truth)
    found = _learned(predictor).predict(batch).quantiles
    usable = np.isfinite(found).all() and (found >= 1.0).all()
    if not usable or (found.max(axis=1) > ceilings).any():
        _fail(predictor, "cannot predict prompts or ceilings of extreme sizes")


def check_no_requests_are_no_predictions(predictor: Predictor) -> None:
    """An empty batch gives no rows."""
    found = _learned(predictor).predict(_rows(_batch(predictor), [])).quantiles
    if found.shape != (0, len(LEVELS)):
        _fail(predictor, f"returned shape {found.shape} for no requests, expected (0, 9)")


def _batch(predictor: Predictor, seed: int = 0, n: int = 24) -> Arrivals:
    rng = np.random.default_rng(seed)
    ceilings = rng.integers(1, 2000, n)
    truth = rng.integers(1, ceilings, endpoint=True) if TRUTH in predictor.requires else None
    return Arrivals(
        [f"r{seed}-{i}" for i in range(n)],
        rng.integers(1, 4000, n),
        ceilings,
        [f"t{i % 3}" if i % 4 else "" for i in range(n)],
        truth,
    )


def _rows(batch: Arrivals, rows: list[int]) -> Arrivals:
    some = np.array(rows, dtype=np.intp)
    return Arrivals(
        [batch.request_id[i] for i in rows],
        batch.prompt_tokens[some],
        batch.max_tokens[some],
        [batch.tenant[i] for i in rows],
        None if batch.truth is None else batch.truth[some],
    )


def _learned(predictor: Predictor) -> Predictor:
    """A copy that has seen some answers, so that its state counts."""
    made = type(predictor).model_validate(predictor.model_dump(mode="json", by_alias=True))
    seen = _batch(predictor, seed=1)
    made.observe(seen, np.maximum(seen.max_tokens // 2, 1))
    return made


def _predicted(predictor: Predictor) -> FloatArray:
    return _learned(predictor).predict(_batch(predictor)).quantiles


def _fail(predictor: Predictor, message: str) -> NoReturn:
    raise PolicyContractError(f"{type(predictor).__name__}.predict: {message}")
