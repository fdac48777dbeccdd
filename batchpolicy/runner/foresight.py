"""Asks a predictor about arrivals, on the rank that makes the ticks, and tells it the truth."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from batchpolicy.predictor import Predictor
from batchpolicy.runner.asking import Answer, Asked, Asker, Desk, Question
from batchpolicy.runner.facts import EngineFacts, Predictions, RequestFacts, joined
from batchpolicy.runner.forecast import Told
from batchpolicy.runner.on_clock import OnClock
from batchpolicy.runner.on_thread import OnThread

logger = logging.getLogger(__name__)

_PREFIX = "predictor_"


class Foresight:
    """Predictions for a tick. A predictor that fails, or answers nonsense, is counted.

    Requests that bring a prediction of their own are not asked about: whoever sent
    them knows more. What came since the last tick is asked about in one go, and what is
    ready by now goes with the tick: in a server the predictor works on a thread, under a
    virtual clock it takes as long as it states.
    """

    def __init__(
        self,
        predictor: Predictor,
        engine: EngineFacts,
        quantile: float,
        counters: Counter[str],
        *,
        strict: bool,
    ) -> None:
        """``quantile`` is the one that memory is reserved by."""
        self._name = type(predictor).__name__
        self._counters = counters
        self._strict = strict
        self.tells: Told = "as told" if predictor.as_told else "estimates"
        asker = Asker(predictor, quantile)
        self._desk: Desk = OnThread(asker) if engine.live else OnClock(asker)
        # Of several ranks all hear of requests, and one predicts.
        self._asks = engine.leads
        self._observes = self._asks and type(predictor).observe is not Predictor.observe
        self._new: list[Asked] = []
        self._open: dict[str, Asked] = {}
        """Requests of which the predictor wants to hear how long they became."""
        self._ended: list[tuple[Asked, int]] = []
        self._told: dict[str, int] = {}
        """The predictor's own counts, as far as they are in ours."""

    def arrived(self, request_id: str, facts: RequestFacts, seq: int, turn: int) -> None:
        """A request came, the ``seq``-th; ``turn`` of its session, -1 without one."""
        asked = Asked(request_id, seq, turn, facts)
        if self._asks and facts.predicted_output_tokens != facts.predicted_output_tokens:
            self._new.append(asked)
        if self._observes:
            self._open[request_id] = asked

    def ended(self, request_id: str, output_tokens: int | None) -> None:
        """A request ended, with a whole answer of so many tokens or without one."""
        asked = self._open.pop(request_id, None)
        if asked is not None and output_tokens:
            self._ended.append((asked, output_tokens))

    def take(self, now_s: float) -> Predictions | None:
        """Ask about what has come since the last call; the predictions that are ready."""
        # The step before may have come to nothing.
        self.begin()
        if self._new or self._ended:
            self._desk.ask(Question(self._ended, self._new), now_s)
            self._new, self._ended = [], []
        answers = self._desk.answers(now_s)
        return self._predictions(answers) if answers else None

    def begin(self) -> None:
        """The step is planned, and the engine computes it."""
        dropped = self._desk.begin()
        if dropped:
            self._dropped(dropped)

    def close(self) -> None:
        """Nobody asks any more."""
        self._desk.close()

    def _predictions(self, answers: list[Answer]) -> Predictions | None:
        for answer in answers:
            for fault in answer.faults:
                self._failed(fault)
            if answer.counts:
                self._count(answer.counts)
            if answer.silent:
                self._counters["predictor_silent"] += answer.silent
        said = [answer.said for answer in answers if answer.said is not None]
        return joined(said) if said else None

    def _count(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            new = count - self._told.get(name, 0)
            if new > 0:
                self._told[name] = count
                ours = name if name.startswith(_PREFIX) else _PREFIX + name
                self._counters[ours] += new

    def _dropped(self, requests: int) -> None:
        if not self._counters["predictor_dropped"]:
            logger.error(
                "predictor %s is too slow, or hangs: requests go without its prediction. "
                "Further ones are counted, not logged.",
                self._name,
            )
        self._counters["predictor_dropped"] += requests

    def _failed(self, fault: BaseException) -> None:
        if self._strict:
            raise fault
        self._counters["predictor_faults"] += 1
        if self._counters["predictor_faults"] == 1:
            logger.error(
                "predictor %s failed; requests go without its prediction. "
                "Further faults are counted, not logged.",
                self._name,
                exc_info=fault,
            )
