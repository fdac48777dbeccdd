"""What checks have to go by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from batchpolicy_tuning.cases.check_specs import Event
from batchpolicy_tuning.cases.setting import Setting
from batchpolicy_tuning.cases.trace import Course, Trace

SHOWN = 3
"""Requests that a failed check names."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run of a case, and ways to get more."""

    setting: Setting
    trace: Trace
    again: Callable[[], Trace]
    """The trace of a second run."""
    seconds_per_decision: Callable[[int], float]
    """Processor time of a step with so many requests waiting."""
    policy_cpu_s: Callable[[], float]
    """Processor time in the policy, over a run."""

    def named(self, ids: Iterable[str]) -> list[Course]:
        """Courses by id or prefix; those of one prefix in order of submission."""
        found: dict[str, Course] = {}
        for pattern in ids:
            for name, course in self.trace.courses.items():
                if name == pattern or (pattern[-1] == "*" and name.startswith(pattern[:-1])):
                    found[name] = course
        return list(found.values())


def time_of(course: Course, event: Event) -> float:
    """When it happened, or NaN; ``finish`` is the end in whatever state."""
    if event == "first_scheduled":
        return course.first_scheduled_s
    return course.first_token_s if event == "first_token" else course.end_s


def seconds(value: float) -> str:
    """A time as people read it."""
    return "never" if not math.isfinite(value) else f"{value:.6g} s"


def listed(parts: Sequence[str]) -> str:
    """The first few of many."""
    more = f", {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return ", ".join(parts[:SHOWN]) + more
