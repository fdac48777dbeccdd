"""A predictor under a virtual clock: it takes as long as it states, and always the same."""

from __future__ import annotations

import math
from collections import deque

from typing_extensions import override

from batchpolicy.runner.asking import Answer, Asker, Desk, Question


class OnClock(Desk):
    """Works on one question after another, beside the engine; a tick takes what is done."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._free_s = -math.inf
        """When it will be done with all that it was asked."""
        self._done: deque[tuple[float, Answer]] = deque()

    @override
    def ask(self, question: Question, now_s: float) -> None:
        cost_s, answer = self._asker.cost_s(question), self._asker.answer(question)
        if not 0.0 <= cost_s < math.inf:
            answer.faults.append(ValueError(f"cost_s is {cost_s}, expected seconds, at least 0"))
            cost_s = 0.0
        self._free_s = max(self._free_s, now_s) + cost_s
        self._done.append((self._free_s, answer))

    @override
    def answers(self, now_s: float) -> list[Answer]:
        found: list[Answer] = []
        while self._done and self._done[0][0] <= now_s:
            found.append(self._done.popleft()[1])
        return found

    @override
    def begin(self) -> int:
        return 0  # Its time is the clock's.

    @override
    def close(self) -> None:
        self._done.clear()
