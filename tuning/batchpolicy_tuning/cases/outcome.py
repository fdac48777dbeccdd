"""How a case ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """What is said of a case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Failure(NamedTuple):
    """What was asked for and not found."""

    kind: str
    """The check's kind, an invariant, ``variant`` or ``run``."""
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.kind}: expected {self.expected}; found {self.found}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ended, and why."""

    case: str
    title: str
    verdict: Verdict
    failures: tuple[Failure, ...] = ()
    lacking: tuple[str, ...] = ()
    """Why it is not applicable."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line, as a file of expected outcomes has it."""
        kinds = dict.fromkeys(failure.kind for failure in self.failures)
        return " ".join([self.case, self.verdict.value, *kinds])


def totals(outcomes: Sequence[Outcome]) -> str:
    """How many ended how, in one line."""
    count = Counter(one.verdict for one in outcomes)
    return ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict)
