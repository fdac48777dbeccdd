"""Measurements that are commands: what ``batchpolicy bench NAME`` runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from batchpolicy.errors import ConfigError

Progress = Callable[[str], None]
"""Told what is being measured."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure, beside what it is held against."""

    what: str
    value: str
    """With its unit; for a ratio, both sides."""
    goal: str = ""
    met: bool | None = None
    """Whether the goal is reached; None where there is none."""
    reason: str = ""
    """Why it is not, or what the reader should know."""


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows side by side, such as policies or settings, each value with its unit as text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """As long as ``columns`` each."""
    note: str = ""
    """What the reader should know of this table."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All figures of a bench, in the order in which they are to be read."""

    title: str
    measurements: Sequence[Measurement]
    notes: Sequence[str] = ()
    tables: Sequence[ResultTable] = ()
    """What the figures come from, baselines and losers included."""


class Bench(ABC):
    """Measures something side by side with its baseline in one run."""

    summary: ClassVar[str]
    engine: ClassVar[str] = ""
    """The engine that it measures; empty where that makes no difference."""

    def choose_engine(self, engine: str) -> None:
        """Measure this engine; a bench that leaves a choice overrides it.

        Raises
        ------
        ConfigError
            When it measures another one, or none.
        """
        if engine != self.engine:
            measured = repr(self.engine) if self.engine else "no engine"
            raise ConfigError(f"this bench measures {measured}, not {engine!r}.")

    def choose_workload(self, workload: str) -> None:
        """Measure on this workload; a bench that leaves a choice overrides it.

        Raises
        ------
        ConfigError
            When it has one of its own, or none.
        """
        raise ConfigError(f"this bench leaves no choice of workload, {workload!r} was given.")

    def choose_data(self, data: Path) -> None:
        """Take tables from this file or folder; a bench that reads some overrides it.

        Raises
        ------
        ConfigError
            When it reads none.
        """
        raise ConfigError(f"this bench reads no data, {str(data)!r} was given.")

    @abstractmethod
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        """Measure; ``quick`` to see that it works, with figures that mean little."""
