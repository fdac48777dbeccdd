"""What a scheduler knows of a request, as numbers for trees."""

from __future__ import annotations

import numpy as np

from batchpolicy.predictor import Arrivals
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_predictors import hashing
from batchpolicy_predictors.trees import Float32Array

NAMES = (
    "log_prompt_tokens",
    "log_max_tokens",
    "temperature",
    "turn",
    "hour_sin",
    "hour_cos",
    "history_log_median",
    "history_log_spread",
    "distinct_share",
    "ngram_score",
)
"""Columns of ``matrix``. The last two are of token ids, those before them of anything."""
BUCKET_BITS = 14
BUCKETS = 2**BUCKET_BITS
"""Numbers that hashes of tokens and pairs share."""
UNKNOWN = -1.0
"""Stands for what is not known; all that is known is larger."""
_MOST_TURNS = 32


def matrix(
    batch: Arrivals, history: FloatArray | None, tokens: Float32Array | None
) -> Float32Array:
    """Features of each request, shape ``(n, 10)``.

    ``history`` are quantiles that earlier answers say, shape ``(n, 9)``; ``tokens`` what
    ``of_tokens`` says, shape ``(n, 2)``; each None where it is not used.
    """
    n = len(batch)
    found = np.full((n, len(NAMES)), UNKNOWN, dtype=np.float32)
    found[:, 0] = np.log1p(batch.prompt_tokens)
    found[:, 1] = np.log1p(batch.max_tokens)
    if batch.temperature is not None:
        found[:, 2] = _known(np.minimum(batch.temperature, 10.0))
    if batch.turn is not None:
        found[:, 3] = np.minimum(batch.turn, _MOST_TURNS)
    found[:, 4:6] = 0.0
    if batch.hour is not None:
        angle = np.where(np.isnan(batch.hour), 0.0, batch.hour) * (np.pi / 12.0)
        known = ~np.isnan(batch.hour)
        found[:, 4] = np.sin(angle)
        found[:, 5] = np.cos(angle) * known
    if history is not None:
        middle = np.log(history[:, 4])
        found[:, 6] = middle
        found[:, 7] = np.log(history[:, 7]) - middle
    if tokens is not None:
        found[:, 8:] = tokens
    return found


def of_tokens(ends: IntArray, weights: Float32Array) -> Float32Array:
    """Features of ``hashing.ends``, shape ``(n, 2)``: part of distinct tokens, and a score.

    The score sums ``weights``, shape ``(BUCKETS,)``, of the tokens and pairs at both ends.
    """
    buckets, there = bucketed(ends)
    # A sum from left to right, so that no row depends on how many there are.
    total = np.cumsum(weights.take(buckets) * there, axis=1)[:, -1]
    found = np.empty((len(ends), 2), dtype=np.float32)
    found[:, 0] = distinct_share(ends)
    found[:, 1] = total / np.sqrt(np.maximum(np.count_nonzero(there, axis=1), 1))
    return found


def bucketed(ends: IntArray) -> tuple[IntArray, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """The bucket of each token and pair, and which there are; both ``(n, SHINGLES)``."""
    hashes, there = hashing.shingles(ends)
    return (hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.int64), there


def distinct_share(ends: IntArray) -> FloatArray:
    """Distinct tokens of head and tail over their number, shape ``(n,)``; 1 for none."""
    ordered = np.sort(ends, axis=1)
    new = (ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    distinct = np.count_nonzero(new, axis=1) + (ordered[:, 0] >= 0)
    there = np.count_nonzero(ends >= 0, axis=1)
    share: FloatArray = np.maximum(distinct, 1) / np.maximum(there, 1)
    return share


def _known(values: FloatArray) -> FloatArray:
    return np.where(np.isnan(values), UNKNOWN, values)
