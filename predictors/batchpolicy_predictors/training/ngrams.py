"""Weights of hashed tokens and pairs: one number that says what the words of a prompt promise."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_predictors import features
from batchpolicy_predictors.training.boosting import library
from batchpolicy_predictors.trees import Float32Array

RIDGE = 2.0


def score_weights(ends: IntArray, target: FloatArray) -> Float32Array:
    """Weights, shape ``(BUCKETS,)``, whose score is nearest to ``target``; ridge regression."""
    fit = library("sklearn.linear_model").Ridge(RIDGE, solver="lsqr", tol=1e-8)
    fit.fit(_matrix(ends), target - target.mean())
    found: Float32Array = fit.coef_.astype(np.float32)
    return found


def _matrix(ends: IntArray) -> Any:
    """Counts of the buckets over the root of their number, shape ``(n, BUCKETS)``, sparse."""
    buckets, there = features.bucketed(ends)
    rows, places = np.nonzero(there)
    scale = 1.0 / np.sqrt(np.maximum(there.sum(axis=1), 1))
    shape = (len(ends), features.BUCKETS)
    return library("scipy.sparse").csr_matrix(
        (scale[rows], (rows, buckets[rows, places])), shape=shape
    )
