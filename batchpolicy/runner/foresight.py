"""Asks a predictor about arrivals, on the rank that makes the ticks, and tells it the truth."""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np

from batchpolicy.predictor import LEVELS, TRUTH, Arrivals, LengthDist, Predictor
from batchpolicy.requests import FloatArray
from batchpolicy.runner.facts import Predictions, RequestFacts
from batchpolicy.runner.forecast import Told

logger = logging.getLogger(__name__)


class Foresight:
    """Predictions for a tick. A predictor that fails, or answers nonsense, is counted.

    Requests that bring a prediction of their own are not asked about: whoever sent
    them knows more.
    """

    def __init__(self, predictor: Predictor, counters: Counter[str], *, strict: bool) -> None:
        self._predictor = predictor
        self._counters = counters
        self._strict = strict
        self.tells: Told = "as told" if predictor.as_told else "estimates"
        self._truth = TRUTH in predictor.requires
        self._observes = type(predictor).observe is not Predictor.observe
        self._new: list[tuple[str, RequestFacts]] = []
        self._open: dict[str, RequestFacts] = {}
        """Requests of which the predictor wants to hear how long they became."""
        self._ended: list[tuple[str, RequestFacts, int]] = []

    def arrived(self, request_id: str, facts: RequestFacts) -> None:
        """A request came."""
        if facts.predicted_output_tokens != facts.predicted_output_tokens:
            self._new.append((request_id, facts))
        if self._observes:
            self._open[request_id] = facts

    def ended(self, request_id: str, output_tokens: int | None) -> None:
        """A request ended, with a whole answer of so many tokens or without one."""
        facts = self._open.pop(request_id, None)
        if facts is not None and output_tokens:
            self._ended.append((request_id, facts, output_tokens))

    def take(self) -> Predictions | None:
        """Predictions for the requests that came since the last call; None without any."""
        if self._ended:
            ended, self._ended = self._ended, []
            outputs = np.array([tokens for _, _, tokens in ended], dtype=np.int64)
            batch = self._batch([(i, facts) for i, facts, _ in ended])
            try:
                self._predictor.observe(batch, outputs)
            except Exception as fault:
                self._failed(fault)
        if not self._new:
            return None
        new, self._new = self._new, []
        batch = self._batch(new)
        try:
            quantiles = _usable(self._predictor.predict(batch), batch)
        except Exception as fault:
            self._failed(fault)
            return None
        return Predictions(batch.request_id, quantiles)

    def _batch(self, requests: list[tuple[str, RequestFacts]]) -> Arrivals:
        facts = [one for _, one in requests]
        truth = None
        if self._truth:
            # Cut where the client's ceiling cuts.
            truth = np.array([min(f.true_output_tokens or 1, f.max_tokens) for f in facts])
        return Arrivals(
            [request_id for request_id, _ in requests],
            np.array([f.prompt_tokens for f in facts], dtype=np.int64),
            np.array([f.max_tokens for f in facts], dtype=np.int64),
            [f.tenant for f in facts],
            truth,
        )

    def _failed(self, fault: Exception) -> None:
        if self._strict:
            raise fault
        self._counters["predictor_faults"] += 1
        if self._counters["predictor_faults"] == 1:
            logger.error(
                "predictor %s failed; requests go without its prediction. "
                "Further faults are counted, not logged.",
                type(self._predictor).__name__,
                exc_info=fault,
            )


def _usable(found: LengthDist, batch: Arrivals) -> FloatArray:
    """The quantiles, if the tables may take them."""
    quantiles = np.asarray(found.quantiles, dtype=np.float64)
    shape = (len(batch), len(LEVELS))
    if quantiles.shape != shape:
        raise ValueError(f"predict returned quantiles of shape {quantiles.shape}, not {shape}")
    if not (np.isfinite(quantiles).all() and (quantiles >= 1.0).all()):
        raise ValueError("predict returned quantiles that are no numbers of tokens from 1 on")
    if (np.diff(quantiles, axis=1) < 0).any():
        raise ValueError("predict returned quantiles that are not ascending")
    return np.minimum(quantiles, batch.max_tokens[:, None])
