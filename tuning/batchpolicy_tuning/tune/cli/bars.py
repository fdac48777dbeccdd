"""How far a study is, on stderr."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from batchpolicy_tuning.tune.judging import Goal
from batchpolicy_tuning.tune.progress import Clock, Lines, Silent, Watcher, best_so_far
from batchpolicy_tuning.tune.records import TrialRecord


@contextmanager
def watching(goals: Sequence[Goal], quiet: bool) -> Generator[Watcher, None, None]:
    """Shows on stderr how far a study is: a bar on a terminal, else lines."""
    console = Console(stderr=True)
    if quiet:
        yield Silent()
    elif not console.is_terminal:
        yield Lines(goals)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
            TextColumn("{task.fields[best]}"),
        )
        with Progress(*columns, console=console) as bars:
            yield _Bar(goals, bars)


class _Bar:
    """One bar for each stage, with the best so far and the time left."""

    def __init__(self, goals: Sequence[Goal], bars: Progress) -> None:
        self._goals, self._clock, self._bars = goals, Clock(), bars
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def stage(self, text: str, total: int, done: int = 0) -> None:
        self._clock.start(total, done)
        self._task = self._bars.add_task(text, total=total, completed=done, best="", left="-:--")

    def trial(self, record: TrialRecord, trials: Sequence[TrialRecord]) -> None:
        self._clock.done = len(trials)
        self._show(best_so_far(self._goals, trials))

    def advance(self) -> None:
        self._clock.done += 1
        self._show("")

    def _show(self, best: str) -> None:
        if self._task is not None:
            self._bars.update(
                self._task, completed=self._clock.done, best=best, left=self._clock.left()
            )
