"""A predictor on a thread of its own, for which no step ever waits."""

from __future__ import annotations

import threading
import weakref
from collections import deque

from typing_extensions import override

from batchpolicy.runner.asking import Answer, Asked, Asker, Desk, Question

MOST_AT_ONCE = 64
"""Requests of one call: while it computes in Python, the engine's threads cannot."""
MOST_LEFT = 4096
"""Requests that wait for a predictor, and as many answers; beyond, the oldest are dropped."""


class OnThread(Desk):
    """Questions go to one thread, which answers them in order.

    It is sent to work when the engine computes: before, it would take the interpreter from
    the step that is being planned, call by call. It is started with the first question, ends
    with ``close`` or with this object, and does not keep the process alive.
    """

    def __init__(
        self, asker: Asker, *, most_at_once: int = MOST_AT_ONCE, most_left: int = MOST_LEFT
    ) -> None:
        self._asker = asker
        self._mailbox = Mailbox(most_at_once, most_left)
        self._answers: deque[Answer] = deque()
        self._thread: threading.Thread | None = None
        self._told = True
        """The thread knows of all that was left for it."""
        # Who serves the mailbox knows nothing of this object, so that it may go.
        self._closing = weakref.finalize(self, self._mailbox.close)

    @override
    def ask(self, question: Question, now_s: float) -> int:
        self._told = False
        return self._mailbox.put(question)

    @override
    def begin(self) -> None:
        if self._told:
            return
        self._told = True
        self._mailbox.ring()
        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve,
                args=(self._mailbox, self._asker, self._answers),
                name="batchpolicy-predictor",
                daemon=True,
            )
            self._thread.start()

    @override
    def answers(self, now_s: float) -> list[Answer]:
        answers = self._answers
        return [answers.popleft() for _ in range(len(answers))]

    @override
    def close(self) -> None:
        self._closing()


class Mailbox:
    """What is left for one thread: of all that came meanwhile it makes one question."""

    def __init__(self, most_at_once: int, most_left: int) -> None:
        self._most = most_at_once
        self._ended: deque[tuple[Asked, int]] = deque(maxlen=most_left)
        self._new: deque[Asked] = deque(maxlen=most_left)
        self._left = most_left
        self._rung = False
        """Somebody wants what is in it to be done."""
        self._closed = False
        self._changed = threading.Condition()

    def put(self, question: Question) -> int:
        """Leave a question; how many requests fall out of the box for it."""
        with self._changed:
            if self._closed:
                return 0
            dropped = max(len(self._new) + len(question.new) - self._left, 0)
            self._ended += question.ended
            self._new += question.new
        return dropped

    def ring(self) -> None:
        """Let what was left be done."""
        with self._changed:
            self._rung = True
            self._changed.notify()

    def get(self) -> Question | None:
        """Wait for a question; None once the box is closed."""
        with self._changed:
            while not (self._rung and (self._new or self._ended)) and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            ended = [self._ended.popleft() for _ in range(min(len(self._ended), self._most))]
            new = [self._new.popleft() for _ in range(min(len(self._new), self._most))]
            self._rung = bool(self._ended or self._new)
            return Question(ended, new)

    def close(self) -> None:
        """Whoever waits, or will, is told that nothing comes."""
        with self._changed:
            self._closed = True
            self._ended.clear()
            self._new.clear()
            self._changed.notify()


def _serve(mailbox: Mailbox, asker: Asker, answers: deque[Answer]) -> None:
    while (question := mailbox.get()) is not None:
        answers.append(asker.answer(question))
