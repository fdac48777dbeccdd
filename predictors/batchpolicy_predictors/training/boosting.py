"""Boosted trees of scikit-learn, as plain arrays."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from batchpolicy.errors import ConfigError
from batchpolicy.requests import FloatArray
from batchpolicy_predictors.trees import DEPTH, LEAVES, NODES, Float32Array, Trees


def library(module: str) -> Any:
    """A module of scikit-learn or of what it brings.

    Raises
    ------
    ConfigError
        When it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise ConfigError(
            "training needs scikit-learn, which is not installed here: "
            "pip install 'batchpolicy[predictors]'"
        ) from e


def fitted(matrix: Float32Array, target: FloatArray, trees: int, seed: int) -> Any:
    """Trees of depth 3 at most for the mean of ``target``, shrunk and of random parts of rows."""
    ensemble = library("sklearn.ensemble").GradientBoostingRegressor(
        n_estimators=trees,
        learning_rate=0.06,
        max_depth=DEPTH,
        min_samples_leaf=max(10, min(200, len(target) // 25)),
        subsample=0.6,
        random_state=seed,
    )
    return ensemble.fit(matrix, target)


def staged(ensemble: Any, matrix: Float32Array, counts: tuple[int, ...]) -> FloatArray:
    """What the first so many trees say, shape ``(len(counts), n)``; 0 trees say the mean."""
    found = {0: np.full(len(matrix), start_of(ensemble))}
    for number, said in enumerate(ensemble.staged_predict(matrix), start=1):
        if number in counts:
            found[number] = said
    return np.array([found[count] for count in counts])


def start_of(ensemble: Any) -> float:
    """What the trees add to."""
    return float(ensemble.init_.constant_.ravel()[0])


def exported(ensemble: Any, count: int) -> Trees:
    """The first ``count`` trees as arrays, which say the same."""
    feature = np.zeros((count, LEAVES), dtype=np.int32)
    threshold = np.full((count, LEAVES), np.inf, dtype=np.float32)
    value = np.zeros((count, LEAVES))
    for number in range(count):
        tree = ensemble.estimators_[number, 0].tree_
        _export(tree, 0, 0, feature[number], threshold[number], value[number])
    return Trees(start_of(ensemble), feature, threshold, value * ensemble.learning_rate)


def _export(tree: Any, at: int, node: int, feature: Any, threshold: Any, value: Any) -> None:
    """Copy the subtree at ``at`` to ``node`` of a complete tree."""
    left, right = int(tree.children_left[at]), int(tree.children_right[at])
    if node >= NODES:
        value[node - NODES] = tree.value[at].ravel()[0]
        return
    if left < 0:
        left = right = at  # a leaf that has come early: both ways lead to it
    else:
        feature[node] = tree.feature[at]
        threshold[node] = _rounded_down(float(tree.threshold[at]))
    _export(tree, left, 2 * node + 1, feature, threshold, value)
    _export(tree, right, 2 * node + 2, feature, threshold, value)


def _rounded_down(threshold: float) -> np.float32:
    """The largest 32-bit number up to a threshold: features, 32-bit too, compare the same."""
    rounded = np.float32(threshold)
    return np.nextafter(rounded, np.float32(-np.inf)) if rounded > threshold else rounded
