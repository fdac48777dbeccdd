"""Two runners in one, told the same and asked the same: their answers must be equal."""

from __future__ import annotations

from typing import Any

from batchpolicy.runner import PolicyRunner


class Twins:
    """Stands for ``one`` wherever an engine holds a runner; ``two`` sees all that it sees."""

    _CALLS = frozenset(
        {
            "arrived", "ready", "finished", "begin", "plan", "keep_order", "scheduled",
            "preempted", "produced", "produced_steadily", "reconcile", "certificate", "explain",
        }
    )  # fmt: skip

    def __init__(self, one: PolicyRunner, two: PolicyRunner) -> None:
        self.one, self.two = one, two

    def __getattr__(self, name: str) -> Any:
        first = getattr(self.one, name)
        if name not in self._CALLS:
            return first
        second = getattr(self.two, name)

        def both(*args: Any, **more: Any) -> Any:
            answers = first(*args, **more), second(*args, **more)
            assert answers[0] == answers[1], f"{name} gave {answers}"
            assert self.one.counters == self.two.counters
            return answers[0]

        return both
