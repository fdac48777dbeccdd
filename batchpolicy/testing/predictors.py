"""Promises of a predictor of output lengths."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np

from batchpolicy.errors import PolicyContractError
from batchpolicy.predictor import LEVELS, TRUTH, Arrivals, LengthDist, Predictor
from batchpolicy.requests import BoolArray, FloatArray

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
    yield check_it_predicts_before_it_has_seen_anything
    yield check_what_is_not_known_may_be_missing
    yield check_any_answer_may_be_observed
    yield check_what_it_is_given_stays_as_it_was
    yield check_what_it_returned_is_the_callers
    yield check_its_cost_is_stated
    yield check_memory_is_bounded


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
    """Shape ``(n, 9)``, of 64-bit floats, a row finite or, to say nothing, all NaN."""
    batch = _batch(predictor)
    found = _learned(predictor).predict(batch)
    if type(found) is not LengthDist:
        _fail(predictor, f"returned {type(found).__name__}, expected a LengthDist")
    found = LengthDist(np.asarray(found.quantiles))
    shape = (len(batch), len(LEVELS))
    if found.quantiles.shape != shape or found.quantiles.dtype != np.float64:
        got = f"{found.quantiles.shape} of {found.quantiles.dtype}"
        _fail(predictor, f"returned quantiles of shape {got}, expected {shape} of float64")
    if not np.isfinite(found.quantiles[~_silent(found.quantiles)]).all():
        _fail(predictor, "returned quantiles that are neither finite nor NaN in the whole row")


def check_quantiles_ascend(predictor: Predictor) -> None:
    """No quantile is below that of a lower level."""
    if (np.diff(_predicted(predictor), axis=1) < 0).any():
        _fail(predictor, "returned quantiles that fall from one level to the next")


def check_lengths_are_possible(predictor: Predictor) -> None:
    """Between one token and ``max_tokens``."""
    batch = _batch(predictor)
    found = _predicted(predictor)
    # Of NaN neither is true.
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
        alone = learned.predict(batch.take(np.array([row]))).quantiles
        if not np.allclose(alone[0], together[row], rtol=1e-9, equal_nan=True):
            _fail(predictor, f"row {row} alone is predicted otherwise than in a batch")
    back = learned.predict(batch.take(np.arange(len(batch))[::-1])).quantiles[::-1]
    if not np.allclose(back, together, rtol=1e-9, equal_nan=True):
        _fail(predictor, "predictions depend on the order of the batch")


def check_predictions_repeat(predictor: Predictor) -> None:
    """Two predictors told alike agree bit for bit."""
    if not np.array_equal(_predicted(predictor), _predicted(predictor), equal_nan=True):
        _fail(predictor, "two predictors with the same parameters disagree")


def check_predicting_changes_nothing(predictor: Predictor) -> None:
    """Only ``observe`` changes what is predicted next."""
    learned, batch = _learned(predictor), _batch(predictor)
    first = learned.predict(batch).quantiles.copy()
    if not np.array_equal(first, learned.predict(batch).quantiles, equal_nan=True):
        _fail(predictor, "predicts otherwise when it is asked again")


def check_extremes_are_predicted(predictor: Predictor) -> None:
    """Prompts and ceilings of any size, and requests without a tenant."""
    sizes = np.array([1, 1, 2**20, 2**20])
    ceilings = np.array([1, 2**20, 1, 2**20])
    truth = np.array([1, 2**20, 1, 5]) if TRUTH in predictor.requires else None
    batch = Arrivals(["a", "b", "c", "d"], sizes, ceilings, ["", "", "x", "x"], truth)
    _usable(predictor, _learned(predictor), batch, "of prompts or ceilings of extreme sizes")


def check_no_requests_are_no_predictions(predictor: Predictor) -> None:
    """An empty batch gives no rows."""
    found = _learned(predictor).predict(_batch(predictor).take(np.arange(0))).quantiles
    if found.shape != (0, len(LEVELS)):
        _fail(predictor, f"returned shape {found.shape} for no requests, expected (0, 9)")


def check_it_predicts_before_it_has_seen_anything(predictor: Predictor) -> None:
    """A cold start gives usable predictions too."""
    batch = _batch(predictor)
    _usable(predictor, _fresh(predictor), batch, "before it has seen an answer")


def check_what_is_not_known_may_be_missing(predictor: Predictor) -> None:
    """Columns may be absent, and values NaN, -1 or empty: predictions stay numbers."""
    batch = _batch(predictor)
    n = len(batch)
    bare = replace(batch, prompt_ids=None, temperature=None, turn=None, hour=None, priority=None)
    blank = replace(
        batch,
        prompt_ids=[[]] * n,
        temperature=np.full(n, np.nan),
        turn=np.full(n, -1),
        hour=np.full(n, np.nan),
    )
    foreign = replace(batch, id_space="of some other tokenizer")
    for one in (bare, blank, foreign):
        learned = _learned(predictor)
        learned.observe(one, np.maximum(one.max_tokens // 3, 1))
        _usable(predictor, learned, one, "where facts of requests are missing")


def check_any_answer_may_be_observed(predictor: Predictor) -> None:
    """None at all, the same one again, an empty one, and one beyond the ceiling."""
    batch, learned = _batch(predictor), _learned(predictor)
    learned.observe(batch.take(np.arange(0)), np.zeros(0, dtype=np.int64))
    for tokens in (
        batch.max_tokens,
        batch.max_tokens,
        0 * batch.max_tokens,
        batch.max_tokens + 2**40,
    ):
        learned.observe(batch, tokens)
    _usable(predictor, learned, batch, "after unusual answers")


def check_what_it_is_given_stays_as_it_was(predictor: Predictor) -> None:
    """Neither asking nor telling changes the columns of a batch."""
    batch, same, learned = _batch(predictor), _batch(predictor), _learned(predictor)
    tokens = np.maximum(batch.max_tokens // 2, 1)
    learned.predict(batch)
    learned.observe(batch, tokens)
    names = ("prompt_tokens", "max_tokens", "truth", "temperature", "turn", "hour", "priority")
    for name in names:
        before, after = getattr(same, name), getattr(batch, name)
        if before is not None and not np.array_equal(before, after, equal_nan=True):
            _fail(predictor, f"changes {name} of the batch that it is given")
    if [list(ids) for ids in batch.prompt_ids or ()] != [list(i) for i in same.prompt_ids or ()]:
        _fail(predictor, "changes prompt_ids of the batch that it is given")


def check_what_it_returned_is_the_callers(predictor: Predictor) -> None:
    """Writing into what was returned changes no later prediction."""
    learned, batch = _learned(predictor), _batch(predictor)
    first = learned.predict(batch).quantiles
    kept = first.copy()
    if first.flags.writeable:
        first[:] = 1.0
    if not np.array_equal(learned.predict(batch).quantiles, kept, equal_nan=True):
        _fail(predictor, "returns an array that it goes on using")


def check_its_cost_is_stated(predictor: Predictor) -> None:
    """``cost_s`` is finite, at least 0, no less for more, and the same whatever was seen."""
    fresh, learned = _fresh(predictor), _learned(predictor)
    sizes = [(0, 0), (1, 0), (64, 0), (64, 1), (64, 64)]
    stated = [float(fresh.cost_s(*size)) for size in sizes]
    # Not the other way around: NaN is neither.
    if not all(0.0 <= cost_s < np.inf for cost_s in stated):
        _fail(predictor, f"states costs of {stated} s, expected finite times, at least 0")
    if stated != sorted(stated):
        _fail(predictor, "states a lower cost for more requests or answers")
    if stated != [float(learned.cost_s(*size)) for size in sizes]:
        _fail(predictor, "states another cost after it has seen answers, so no replay repeats")


def check_memory_is_bounded(predictor: Predictor) -> None:
    """Past 8,192 answers it grows no more, though half of them bring a new tenant and class."""
    made, sizes = _fresh(predictor), list[int]()
    batch = _batch(predictor, seed=2, n=512)
    for part in range(32):
        number = np.arange(len(batch))
        names = [f"tenant {part}-{i}" if i % 2 else "one" for i in range(len(batch))]
        ids = [f"{part}-{i}" for i in range(len(batch))]
        classes = np.where(number % 2, len(batch) * part + number, 0)
        many = replace(batch, request_id=ids, tenant=names, priority=classes)
        made.observe(many, batch.max_tokens // 2 + 1)
        if part in (15, 31):
            sizes.append(_bytes_of(made.__pydantic_private__, set()))
    if sizes[1] > 1.1 * sizes[0] + 4096:
        _fail(
            predictor, f"holds {sizes[0]:,} bytes after 8,192 answers, {sizes[1]:,} after 16,384"
        )


def _batch(predictor: Predictor, seed: int = 0, n: int = 24) -> Arrivals:
    rng = np.random.default_rng(seed)
    ceilings = rng.integers(1, 2000, n)
    truth = rng.integers(1, ceilings, endpoint=True) if TRUTH in predictor.requires else None
    prompts = rng.integers(1, 4000, n)
    return Arrivals(
        [f"r{seed}-{i}" for i in range(n)],
        prompts,
        ceilings,
        [f"t{i % 3}" if i % 4 else "" for i in range(n)],
        truth,
        # A few templates, of which each prompt is one; not all are known.
        [
            [1000 * (i % 5) + k % 90 for k in range(p)] if i % 6 else []
            for i, p in enumerate(prompts)
        ],
        temperature=np.where(np.arange(n) % 5 == 0, np.nan, 0.7),
        turn=np.arange(n) % 4 - 1,
        hour=np.where(np.arange(n) % 7 == 0, np.nan, np.arange(n) % 24.0),
        priority=np.arange(n) % 3 - 1,
    )


def _fresh(predictor: Predictor) -> Predictor:
    return type(predictor).model_validate(predictor.model_dump(mode="json", by_alias=True))


def _learned(predictor: Predictor) -> Predictor:
    """A copy that has seen some answers, so that its state counts."""
    made = _fresh(predictor)
    seen = _batch(predictor, seed=1)
    made.observe(seen, np.maximum(seen.max_tokens // 2, 1))
    return made


def _predicted(predictor: Predictor) -> FloatArray:
    return _learned(predictor).predict(_batch(predictor)).quantiles


def _usable(predictor: Predictor, asked: Predictor, batch: Arrivals, when: str) -> None:
    """Whether what is asked says numbers that tables may take."""
    found = np.asarray(asked.predict(batch).quantiles)
    fits = found.shape == (len(batch), len(LEVELS))
    said, most = found, batch.max_tokens
    if fits:
        says = ~_silent(found)
        said, most = found[says], most[says]
    ascend = fits and (np.diff(said, axis=1) >= 0).all()
    # Not the other way around: NaN is neither.
    if not (ascend and (said >= 1.0).all() and (said.max(axis=1) <= most).all()):
        _fail(predictor, f"predicts nothing usable {when}")


def _silent(quantiles: FloatArray) -> BoolArray:
    return np.asarray(np.isnan(quantiles).all(axis=1))


def _bytes_of(value: object, seen: set[int]) -> int:
    """What an object holds, each part counted once."""
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        pairs = cast("Mapping[Any, Any]", value).items()
        total += sum(_bytes_of(part, seen) for pair in pairs for part in pair)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        total += sum(_bytes_of(part, seen) for part in cast("list[Any]", value))
    else:
        names = getattr(type(value), "__slots__", ())
        parts = [getattr(value, name, None) for name in names] + [getattr(value, "__dict__", None)]
        parts.append(getattr(value, "__pydantic_private__", None))
        total += sum(_bytes_of(part, seen) for part in parts)
    return total


def _fail(predictor: Predictor, message: str) -> NoReturn:
    raise PolicyContractError(f"{type(predictor).__name__}.predict: {message}")
