"""One question to a predictor: answers that it hears of, and requests that it is asked about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from batchpolicy.predictor import LEVELS, TRUTH, Arrivals, LengthDist, Predictor
from batchpolicy.requests import FloatArray
from batchpolicy.runner.facts import Predictions, RequestFacts
from batchpolicy.runner.guard import ends_the_process

_NO_IDS: Sequence[int] = ()


class Asked(NamedTuple):
    """A request as the predictor hears of it."""

    request_id: str
    seq: int
    """Its submission number: ids come again."""
    turn: int
    facts: RequestFacts


class Question(NamedTuple):
    """What a predictor is told first, and asked then."""

    ended: list[tuple[Asked, int]]
    """Requests that ended, and the tokens of their whole answers."""
    new: list[Asked]


class Answer(NamedTuple):
    """What came of a question."""

    said: Predictions | None
    silent: int
    """Requests of which nothing was said."""
    faults: list[BaseException]
    counts: Mapping[str, int]
    """All that the predictor has counted by now."""


class Desk(Protocol):
    """Where questions are left and answers collected, neither of which ever waits."""

    def ask(self, question: Question, now_s: float) -> None:
        """Leave a question."""
        ...

    def answers(self, now_s: float) -> list[Answer]:
        """Answers that are ready and were not collected, in the order of the questions."""
        ...

    def begin(self) -> int:
        """The engine computes: whoever shares its core may work.

        How many requests are not looked at for want of room.
        """
        ...

    def close(self) -> None:
        """No more questions come."""
        ...


class Asker:
    """Puts questions to one predictor; its faults become part of the answers."""

    def __init__(self, predictor: Predictor, quantile: float) -> None:
        """``quantile`` is that of ``Predictions.high``."""
        self._predictor = predictor
        self._quantile = quantile
        self._truth = TRUTH in predictor.requires

    def answer(self, question: Question) -> Answer:
        """Tell, ask, and see to it that the tables may take what comes back."""
        faults: list[BaseException] = []
        if question.ended:
            outputs = np.array([tokens for _, tokens in question.ended], dtype=np.int64)
            try:
                self._predictor.observe(self._batch([one for one, _ in question.ended]), outputs)
            except BaseException as fault:
                faults.append(_its_own(fault))
        said, silent = None, 0
        if question.new:
            try:
                said = self._predictions(question.new)
                silent = len(question.new) - (0 if said is None else len(said.ids))
            except BaseException as fault:
                faults.append(_its_own(fault))
        counts: dict[str, int] = {}
        try:
            counts = {str(name): int(n) for name, n in self._predictor.counts().items()}
        except BaseException as fault:
            faults.append(_its_own(fault))
        return Answer(said, silent, faults, counts)

    def cost_s(self, question: Question) -> float:
        """What the predictor states that this takes; NaN if it fails to."""
        try:
            return float(self._predictor.cost_s(len(question.new), len(question.ended)))
        except BaseException as fault:
            _its_own(fault)
            return math.nan

    def _predictions(self, asked: list[Asked]) -> Predictions | None:
        """All that the tables take, so that nothing of it is worked out in a step."""
        batch = self._batch(asked)
        found = LengthDist(_usable(self._predictor.predict(batch), batch))
        known = found.known
        if not known.all():
            found = LengthDist(found.quantiles[known])
            asked = [one for one, says in zip(asked, known.tolist(), strict=True) if says]
        if not asked:
            return None
        seq = np.array([one.seq for one in asked], dtype=np.int64)
        ids = [one.request_id for one in asked]
        return Predictions(ids, found.quantiles, found.quantile(self._quantile), seq)

    def _batch(self, asked: list[Asked]) -> Arrivals:
        facts = [one.facts for one in asked]
        truth = None
        if self._truth:
            # Cut where the client's ceiling cuts.
            truth = np.array([min(f.true_output_tokens or 1, f.max_tokens) for f in facts])
        return Arrivals(
            [one.request_id for one in asked],
            np.array([f.prompt_tokens for f in facts], dtype=np.int64),
            np.array([f.max_tokens for f in facts], dtype=np.int64),
            [f.tenant for f in facts],
            truth,
            prompt_ids=[_NO_IDS if f.prompt_ids is None else f.prompt_ids for f in facts],
            temperature=np.array([f.temperature for f in facts], dtype=np.float64),
            turn=np.array([one.turn for one in asked], dtype=np.int64),
            hour=np.array([f.hour for f in facts], dtype=np.float64),
            priority=np.array([f.priority for f in facts], dtype=np.int64),
        )


def _its_own(fault: BaseException) -> BaseException:
    # A predictor that calls sys.exit() must end neither a replay nor, unheard, its thread.
    if ends_the_process(fault):
        raise fault
    return fault


def _usable(found: LengthDist, batch: Arrivals) -> FloatArray:
    """The quantiles, if the tables may take them; rows of NaN say nothing."""
    quantiles = np.asarray(found.quantiles, dtype=np.float64)
    shape = (len(batch), len(LEVELS))
    if quantiles.shape != shape:
        raise ValueError(f"predict returned quantiles of shape {quantiles.shape}, not {shape}")
    said = quantiles[~np.isnan(quantiles).all(axis=1)]
    if not (np.isfinite(said).all() and (said >= 1.0).all()):
        raise ValueError("predict returned quantiles that are no numbers of tokens from 1 on")
    if (np.diff(said, axis=1) < 0).any():
        raise ValueError("predict returned quantiles that are not ascending")
    return np.minimum(quantiles, batch.max_tokens[:, None])
