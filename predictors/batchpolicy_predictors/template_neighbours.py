"""Predictions from answers to similar prompts."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, PrivateAttr
from typing_extensions import override

from batchpolicy.predictor import LEVELS, Arrivals, LengthDist, Predictor, within
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_predictors import hashing
from batchpolicy_predictors.histories import TenantHistory
from batchpolicy_predictors.samples import FEW, between, sample_quantiles

HASHES = 32
"""Smallest hashes that stand for a prompt."""
SignatureArray = npt.NDArray[np.uint32]

_NOBODY = np.uint32(0xFFFFFFFF)


def _multipliers() -> hashing.HashArray:
    """Odd numbers, the same everywhere."""
    steps = np.arange(1, HASHES + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (steps ^ (steps >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) | np.uint64(1)


_MULTIPLIERS = _multipliers()


class TemplateNeighbours(Predictor):
    """Answers are as long as those to the most similar of the latest prompts.

    Similar is what shares tokens and pairs of them at head and tail: the part of equal
    smallest hashes estimates the part of shared ones (A. Broder, "On the resemblance and
    containment of documents", 1997). Where too few are similar, and where there are no token
    ids, the tenant's history speaks. Whole numbers all the way: the same on every machine.
    """

    memory: Annotated[int, Field(ge=16, le=65_536)] = 1024
    """Prompts that are remembered, the latest ones."""
    neighbours: Annotated[int, Field(ge=4, le=512)] = FEW
    """Most similar prompts that count."""
    least_similarity: Annotated[float, Field(gt=0, le=1)] = 0.35
    """Part of the shared tokens and pairs below which a prompt is another one."""

    _history: TenantHistory = PrivateAttr(default_factory=TenantHistory)
    _signatures: SignatureArray = PrivateAttr()
    """Shape ``(memory, 32)``."""
    _lengths: FloatArray = PrivateAttr()
    _count: int = PrivateAttr(default=0)
    """Prompts that ever came; the next one takes the place of the oldest."""

    @override
    def model_post_init(self, context: object) -> None:
        self._signatures = np.full((self.memory, HASHES), _NOBODY)
        self._lengths = np.zeros(self.memory)

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        found = self._history.quantiles_of(batch.tenant)
        kept = min(self._count, self.memory)
        if batch.prompt_ids is not None and kept and len(batch):
            stored = self._signatures[:kept]
            for row, signature in enumerate(signatures(batch)):
                if signature[0] != _NOBODY:
                    found[row] = self._near(stored, signature, found[row])
        return within(found, batch.max_tokens)

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 2e-5 * (rows > 0) + 5e-5 * rows + 5e-5 * answers

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        self._history.observe(batch, output_tokens)
        if batch.prompt_ids is None or not len(batch):
            return
        for signature, tokens in zip(signatures(batch), output_tokens.tolist(), strict=True):
            if signature[0] != _NOBODY:
                place = self._count % self.memory
                self._signatures[place] = signature
                self._lengths[place] = max(tokens, 1)
                self._count += 1

    def _near(
        self, stored: SignatureArray, signature: SignatureArray, otherwise: FloatArray
    ) -> FloatArray:
        shared = np.count_nonzero(stored == signature, axis=1)
        near = np.flatnonzero(shared >= self.least_similarity * HASHES)
        if not len(near):
            return otherwise
        if len(near) > self.neighbours:
            # The most similar, of equals the latest.
            age = (self._count - 1 - near) % self.memory
            near = near[np.lexsort((age, -shared[near]))[: self.neighbours]]
        lengths = np.sort(self._lengths[near])
        weight = len(near) / (len(near) + 4.0)
        return between(otherwise, sample_quantiles(lengths, LEVELS), weight)


def signatures(batch: Arrivals) -> SignatureArray:
    """What stands for each prompt, shape ``(n, 32)``; all ones where there are no ids."""
    hashes, there = hashing.shingles(hashing.ends(batch.prompt_ids or ()))
    found = np.empty((len(batch), HASHES), dtype=np.uint32)
    # One row at a time: 126 by 32 numbers stay in the cache, a batch of them would not.
    for row in range(len(batch)):
        mine = hashes[row, there[row]]
        if len(mine):
            every = (mine[:, None] * _MULTIPLIERS) >> np.uint64(33)
            found[row] = every.min(axis=0)
        else:
            found[row] = _NOBODY
    return found
