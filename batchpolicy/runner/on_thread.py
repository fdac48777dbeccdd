"""A predictor on a thread of its own, for which no step ever waits."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from queue import SimpleQueue

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
        self._asked: list[Question] = []
        """What the thread is not told of yet."""
        # Who serves the mailbox knows nothing of this object, so that it may go.
        self._closing = weakref.finalize(self, self._mailbox.close)

    @override
    def ask(self, question: Question, now_s: float) -> None:
        self._asked.append(question)

    @override
    def begin(self) -> int:
        if not self._asked:
            return 0
        dropped = sum(self._mailbox.put(question) for question in self._asked)
        self._asked.clear()
        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve,
                args=(self._mailbox, self._asker, self._answers),
                name="batchpolicy-predictor",
                daemon=True,
            )
            self._thread.start()
        return dropped

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
        self._closed = False
        self._lock = threading.Lock()
        # A condition would say the same in Python, within the step.
        self._bell: SimpleQueue[None] = SimpleQueue()

    def put(self, question: Question) -> int:
        """Leave a question, to be answered now; how many requests fall out of the box for it."""
        if self._closed:
            return 0
        with self._lock:
            dropped = max(len(self._new) + len(question.new) - self._left, 0)
            self._ended += question.ended
            self._new += question.new
        if self._bell.empty():
            self._bell.put(None)
        return dropped

    def get(self) -> Question | None:
        """Wait for a question; None once the box is closed."""
        while not self._closed:
            with self._lock:
                ended = [self._ended.popleft() for _ in range(min(len(self._ended), self._most))]
                new = [self._new.popleft() for _ in range(min(len(self._new), self._most))]
            if ended or new:
                return Question(ended, new)
            self._bell.get()
        return None

    def close(self) -> None:
        """Whoever waits, or will, is told that nothing comes."""
        # Without the lock, as the collector may call this from within it.
        self._closed = True
        self._bell.put(None)


def _serve(mailbox: Mailbox, asker: Asker, answers: deque[Answer]) -> None:
    _give_way()
    while (question := mailbox.get()) is not None:
        answers.append(asker.answer(question))


def _give_way() -> None:
    """Let this thread not take its core from the one that wakes it, which is in a step."""
    if sys.platform == "linux":
        # Not every C library and sandbox has these calls.
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
