"""How far a comparison is, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from batchpolicy_tuning import ab


@contextmanager
def progress_shown(quiet: bool) -> Generator[ab.Progress, None, None]:
    """Bars on a terminal, else a line per 10%."""
    if quiet:
        yield _Silent()
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars)


class _Silent:
    def stage(self, text: str, total: int) -> None:
        pass

    def advance(self) -> None:
        pass


class _Bars:
    """One bar for each stage; those before stay full."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def stage(self, text: str, total: int) -> None:
        self._task = self._bars.add_task(text, total=total)

    def advance(self) -> None:
        if self._task is not None:
            self._bars.advance(self._task)


class _Lines:
    """A line at the start of each stage and after each tenth of it."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._text = ""

    def stage(self, text: str, total: int) -> None:
        self._text, self._total, self._done = text, total, 0
        print(f"{text} ...", file=sys.stderr, flush=True)

    def advance(self) -> None:
        before, self._done = 10 * self._done // self._total, self._done + 1
        if self._total >= 10 and 10 * self._done // self._total > before:
            part = f"{self._done} of {self._total} ({100 * self._done // self._total}%)"
            print(f"{self._text}: {part}", file=sys.stderr, flush=True)
