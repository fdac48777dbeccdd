"""How far a study is, in lines on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Protocol

from batchpolicy_tuning.tune.judging import Goal, best_of, closest_of, off_by, shown
from batchpolicy_tuning.tune.records import TrialRecord


class Watcher(Protocol):
    """Told how far a study is."""

    def say(self, text: str) -> None:
        """Something begins."""
        ...

    def stage(self, text: str, total: int, done: int = 0) -> None:
        """Something begins that has ``total`` parts, some of them done before."""
        ...

    def trial(self, record: TrialRecord, trials: Sequence[TrialRecord]) -> None:
        """A trial has ended; with all that have, it among them."""
        ...

    def advance(self) -> None:
        """One part is done."""
        ...


def best_so_far(goals: Sequence[Goal], trials: Sequence[TrialRecord]) -> str:
    """The best feasible trial so far, else the closest, in a few words."""
    best = best_of(goals, trials)
    if best is not None:
        value = shown(goals[0].key, best.values[goals[0].key])
        return f"best {goals[0].key} {value} (trial {best.number})"
    closest = closest_of(trials)
    if closest is not None:
        return f"none feasible, closest {off_by(closest.worst_miss)} (trial {closest.number})"
    return "none feasible"


class Clock:
    """Time that is left, from the mean of the parts so far."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._total = self._before = self.done = 0

    def start(self, total: int, done: int) -> None:
        """Something begins, of whose ``total`` parts some were done before."""
        self._started, self._total, self._before, self.done = time.monotonic(), total, done, done

    def left(self) -> str:
        """Minutes and seconds, ``-:--`` until a part was done."""
        made = self.done - self._before
        if not made or self.done >= self._total:
            return "-:--" if not made else "0:00"
        seconds = (time.monotonic() - self._started) / made * (self._total - self.done)
        return f"{int(seconds // 60)}:{int(seconds % 60):02}"


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Print it."""

    def stage(self, text: str, total: int, done: int = 0) -> None:
        """Something begins."""

    def trial(self, record: TrialRecord, trials: Sequence[TrialRecord]) -> None:
        """A trial has ended."""

    def advance(self) -> None:
        """One part is done."""


class Lines:
    """A line for each trial, and for each tenth of what has other parts."""

    def __init__(self, goals: Sequence[Goal]) -> None:
        self._goals, self._clock, self._total, self._text = goals, Clock(), 0, ""

    def say(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def stage(self, text: str, total: int, done: int = 0) -> None:
        """Something begins."""
        self._text, self._total = text, total
        self._clock.start(total, done)
        self.say(f"{text} ...")

    def trial(self, record: TrialRecord, trials: Sequence[TrialRecord]) -> None:
        """A trial has ended."""
        self._clock.done = len(trials)
        value = record.values.get(self._goals[0].key)
        got = "" if value is None else f", {self._goals[0].key} {shown(self._goals[0].key, value)}"
        self.say(
            f"trial {len(trials)} of {self._total}: {record.label}, {record.outcome}{got}; "
            f"{best_so_far(self._goals, trials)}; {self._clock.left()} left"
        )

    def advance(self) -> None:
        """One part is done."""
        self._clock.done += 1
        done, total = self._clock.done, self._total
        if 10 * done // total > 10 * (done - 1) // total:
            self.say(f"{self._text}: {done} of {total}; {self._clock.left()} left")
