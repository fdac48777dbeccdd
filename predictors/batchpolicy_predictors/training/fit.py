"""Fits a model: trees for the place and the spread of lengths, errors from rows not fitted on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpolicy.predictor import LEVELS
from batchpolicy.requests import BoolArray, FloatArray
from batchpolicy_predictors import features, hashing
from batchpolicy_predictors.histories import TenantHistory
from batchpolicy_predictors.model import LEAST_SCALE, MOST_SCALE, SCORE, Ensemble
from batchpolicy_predictors.model_file import RESIDUALS
from batchpolicy_predictors.samples import sample_quantiles
from batchpolicy_predictors.training.boosting import exported, fitted, staged
from batchpolicy_predictors.training.examples import Examples
from batchpolicy_predictors.training.judging import MIDDLE, NINETY, asked_in_turn, pinball
from batchpolicy_predictors.training.ngrams import score_weights
from batchpolicy_predictors.trees import Float32Array
from batchpolicy_predictors.weighing import losses

FOLDS = 5
PLACES = (0, 10, 20, 40, 80, 120)
"""Numbers of trees for the location, of which the best on other rows is taken."""
SPREADS = (0, 10, 20, 40)
"""The same for the scale."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Fitted:
    """An ensemble, and of what it is made."""

    ensemble: Ensemble
    place_trees: int
    spread_trees: int
    importance: dict[str, float]
    """Part of what the location's trees gain, by feature; those that gain nothing left out."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of a model are fitted to."""

    weights: Float32Array
    with_ids: Fitted | None
    plain: Fitted
    lengths: FloatArray
    """Quantiles of all answers, shape ``(9,)``."""
    uses_history: bool


def fit(rows: Examples, seed: int, progress: Progress) -> Parts:
    """The parts of a model of these rows.

    Scores and errors are cross-fitted: those of a row come from fits to the other four
    fifths, groups kept together, so that what was learned by heart counts for nothing (R.
    Barber et al., "Predictive Inference with the Jackknife+", Ann. Stat. 49, 2021).
    """
    target = np.log(rows.output_tokens.astype(np.float64))
    fold = _folds(rows)
    lengths = sample_quantiles(np.sort(rows.output_tokens.astype(np.float64)))
    history = asked_in_turn(TenantHistory.after(lengths), rows)
    feature = history if rows.has_history() else None
    plain = features.matrix(rows.arrivals, feature, None)
    progress("fitting trees without token ids")
    without = _fitted(plain, target, fold, seed, history)
    prompts = rows.arrivals.prompt_ids
    known = np.array([len(ids) > 0 for ids in prompts]) if prompts is not None else None
    if prompts is None or known is None or known.mean() < 0.5:
        return Parts(np.zeros(0, dtype=np.float32), None, without, lengths, feature is not None)
    progress("weighing tokens and pairs")
    ends = hashing.ends(prompts)
    weights, score = score_weights(ends, target), np.zeros(len(rows))
    for k in range(FOLDS):
        others = score_weights(ends[fold != k], target[fold != k])
        score[fold == k] = features.of_tokens(ends[fold == k], others)[:, 1]
    tokens = features.of_tokens(ends, weights)
    tokens[:, 1] = score
    progress("fitting trees with token ids")
    matrix = features.matrix(rows.arrivals, feature, tokens)[known]
    told = _fitted(matrix, target[known], fold[known], seed, history[known])
    return Parts(weights, told, without, lengths, feature is not None)


def _folds(rows: Examples) -> npt.NDArray[np.intp]:
    """A fold of each row; rows of a group are in one."""
    hashes = rows.group_hashes()
    order = {int(one): place for place, one in enumerate(np.unique(hashes).tolist())}
    return np.array([order[int(one)] % FOLDS for one in hashes.tolist()])


def _fitted(
    matrix: Float32Array,
    target: FloatArray,
    fold: npt.NDArray[np.intp],
    seed: int,
    history: FloatArray,
) -> Fitted:
    score = matrix[:, SCORE].astype(np.float64)
    slope = _slope(score, target)
    rest = target - slope * score
    places = _cross_fitted(matrix, rest, fold, PLACES, seed)
    truth = np.exp(target)
    lost = [_loss(truth, place + slope * score, np.ones(len(target))) for place in places]
    best = int(np.argmin(lost))
    errors = rest - places[best]
    spreads = _cross_fitted(matrix, np.abs(errors), fold, SPREADS, seed)
    typical = max(float(np.abs(errors).mean()), 1e-3)
    spreads = np.clip(spreads, LEAST_SCALE * typical, MOST_SCALE * typical)
    center = places[best] + slope * score
    widest = int(np.argmin([_loss(truth, center, spread) for spread in spreads]))
    place = fitted(matrix, rest, max(PLACES), seed)
    spread = fitted(matrix, np.abs(errors), max(SPREADS), seed)
    residuals = errors / spreads[widest]
    said = np.exp(center[:, None] + spreads[widest][:, None] * _of_others(residuals, fold))
    ensemble = Ensemble(
        exported(place, PLACES[best]),
        slope,
        exported(spread, SPREADS[widest]),
        typical,
        sample_quantiles(np.sort(residuals), np.linspace(0.0, 1.0, RESIDUALS)),
        losses(history, said, truth).mean(axis=0) / np.median(truth),
    )
    return Fitted(ensemble, PLACES[best], SPREADS[widest], _importance(place, PLACES[best]))


def _of_others(residuals: FloatArray, fold: npt.NDArray[np.intp]) -> FloatArray:
    """Quantiles of the errors in the other folds, for each row, shape ``(n, 9)``.

    Those of its own would flatter the model beside the history, which has not seen the row.
    """
    found = np.empty((len(residuals), len(LEVELS)))
    for k in range(FOLDS):
        rest = _others(fold, k)
        found[fold == k] = sample_quantiles(np.sort(residuals[rest]))
    return found


def _others(fold: npt.NDArray[np.intp], k: int) -> BoolArray:
    """Rows of all folds but one; of all, where groups are too few to leave one out."""
    rest: BoolArray = fold != k
    return rest if rest.any() and not rest.all() else np.ones(len(fold), dtype=np.bool_)


def _slope(score: FloatArray, target: FloatArray) -> float:
    """What a cross-fitted score is worth: less than it promises, if it was learned by heart."""
    around = score - score.mean()
    spread = float(around @ around)
    if spread < 1e-12:
        return 0.0
    return float(min(max(around @ (target - target.mean()) / spread, 0.0), 2.0))


def _cross_fitted(
    matrix: Float32Array,
    target: FloatArray,
    fold: npt.NDArray[np.intp],
    counts: tuple[int, ...],
    seed: int,
) -> FloatArray:
    found = np.empty((len(counts), len(target)))
    for k in range(FOLDS):
        rest = _others(fold, k)
        ensemble = fitted(matrix[rest], target[rest], max(counts), seed)
        found[:, fold == k] = (
            staged(ensemble, matrix[fold == k], counts) if (fold == k).any() else 0
        )
    return found


def _loss(truth: FloatArray, center: FloatArray, spread: FloatArray) -> float:
    """Pinball loss of the median and the 0.9 quantile, with errors as they are."""
    errors = np.sort((np.log(truth) - center) / spread)
    said = np.exp(center[:, None] + spread[:, None] * sample_quantiles(errors, LEVELS))
    return _loss_of(truth, said)


def _loss_of(truth: FloatArray, said: FloatArray) -> float:
    return pinball(truth, said[:, MIDDLE], 0.5) + pinball(truth, said[:, NINETY], 0.9)


def _importance(ensemble: Any, count: int) -> dict[str, float]:
    total = np.zeros(len(features.NAMES))
    for number in range(count):
        total += ensemble.estimators_[number, 0].feature_importances_
    named = zip(features.NAMES, (total / max(total.sum(), 1e-12)).tolist(), strict=True)
    return {name: round(part, 4) for name, part in named if part > 0}
