"""A model by hand, for tests that need no training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from batchpolicy.predictor import LEVELS
from batchpolicy.requests import FloatArray
from batchpolicy_predictors import features
from batchpolicy_predictors.model import Ensemble, Model
from batchpolicy_predictors.model_file import RESIDUALS, write_model
from batchpolicy_predictors.samples import guessed
from batchpolicy_predictors.trees import Trees


def one_question(
    feature: str, threshold: float, no: float, yes: float, start: float = 0.0
) -> Trees:
    """A tree that asks once; further down nothing is above infinity."""
    asked = np.zeros((1, 8), dtype=np.int32)
    above = np.full((1, 8), np.inf, dtype=np.float32)
    asked[0, 0], above[0, 0] = features.NAMES.index(feature), threshold
    return Trees(start, asked, above, np.repeat([[no, yes]], 4, axis=1).reshape(1, 8))


def no_trees(start: float) -> Trees:
    """A constant."""
    empty = np.zeros((0, 8))
    return Trees(start, empty.astype(np.int32), empty.astype(np.float32), empty)


def losing(*by_share: float) -> FloatArray:
    """The same losses at every level."""
    return np.repeat(np.array(by_share)[:, None], len(LEVELS), axis=1)


def ensemble(location: Trees, spread: float = 1.0, slope: float = 0.0) -> Ensemble:
    """Errors from -spread to spread, evenly; in training the history was worth nothing beside."""
    residuals = np.linspace(-1.0, 1.0, RESIDUALS)
    alone = losing(4.0, 3.0, 2.0, 1.0, 0.0)
    return Ensemble(location, slope, no_trees(spread), spread, residuals, alone)


def small_model(*, uses_history: bool = False, **card: Any) -> Model:
    """Prompts beyond 100 tokens get 200 tokens, others 50; ids of 7 at the head double it."""
    location = one_question(
        "log_prompt_tokens", float(np.log1p(100.5)), float(np.log(50)), float(np.log(200))
    )
    buckets, _ = features.bucketed(np.array([[7] + [-1] * 63]))
    weights = np.zeros(features.BUCKETS, dtype=np.float32)
    weights[buckets[0, 0]] = np.log(2.0)
    told = {"tokens": {"id_space": "engine"}, "data": [], "typical_tokens": 100.0, **card}
    return Model(
        told,
        ensemble(location, 0.5, slope=1.0),
        ensemble(location, 0.5),
        weights,
        guessed(100.0),
        uses_history,
        np.zeros(0, dtype=np.uint32),
    )


def saved(folder: Path, model: Model | None = None) -> Path:
    """The file of a model."""
    path = folder / "small.bp"
    write_model(model or small_model(), path)
    return path
