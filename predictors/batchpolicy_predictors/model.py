"""A trained predictor as arrays: where a length is expected, and how far it may be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchpolicy.predictor import Arrivals
from batchpolicy.requests import FloatArray
from batchpolicy_predictors import features, hashing
from batchpolicy_predictors.trees import Float32Array, Trees

SCORE = features.NAMES.index("ngram_score")
LEAST_SCALE, MOST_SCALE = 0.25, 4.0
"""Scales lie between these, in parts of the typical one."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """``log(length) = location + scale * error``, with errors as they were in training."""

    location: Trees
    slope: float
    """What the n-gram score counts beside the trees."""
    scale: Trees
    typical_scale: float
    residuals: FloatArray
    """Quantiles of the errors at evenly spaced levels from 0 to 1, ascending."""
    losses: FloatArray
    """Mean pinball loss in training of each of ``weighing.SHARES`` between the history's
    quantiles and its own, shape ``(5, 9)``, in parts of a typical answer."""

    def expect(self, matrix: Float32Array) -> tuple[FloatArray, FloatArray]:
        """Location and scale of each row, both of shape ``(n,)``."""
        location = self.location.predict(matrix) + self.slope * matrix[:, SCORE]
        least, most = LEAST_SCALE * self.typical_scale, MOST_SCALE * self.typical_scale
        return location, np.clip(self.scale.predict(matrix), least, most)


@dataclass(frozen=True, slots=True)
class Model:
    """What a model file holds."""

    card: Mapping[str, Any]
    """Where it comes from and how good it was, for people; see ``docs/predictors.md``."""
    with_ids: Ensemble | None
    """For requests of which the token ids are known."""
    plain: Ensemble
    """For those of which they are not."""
    weights: Float32Array
    """Of the n-grams, shape ``(BUCKETS,)``; empty without ``with_ids``."""
    lengths: FloatArray
    """Quantiles of the answers in training, shape ``(9,)``: a history before it hears of any."""
    uses_history: bool
    """Whether earlier answers of the tenant are among the features."""
    groups: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]
    """Hashes of the prompts, or of whatever grouped rows, that it was trained on; ascending."""

    @property
    def id_space(self) -> str:
        """What token ids mean to it."""
        found: str = self.card["tokens"]["id_space"]
        return found

    def knows_ids_of(self, batch: Arrivals) -> bool:
        """Whether the token ids of a batch, if it has any, are those of the training."""
        known = self.with_ids is not None and batch.id_space == self.id_space
        return known and batch.prompt_ids is not None

    def parts(
        self, batch: Arrivals, history: FloatArray | None
    ) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], Float32Array]:
        """Which rows ``with_ids`` is for, and the features of all."""
        if not self.knows_ids_of(batch) or batch.prompt_ids is None:
            return np.zeros(len(batch), dtype=np.bool_), features.matrix(batch, history, None)
        ends = hashing.ends(batch.prompt_ids)
        tokens = features.of_tokens(ends, self.weights)
        return ends[:, 0] >= 0, features.matrix(batch, history, tokens)
