"""A time in which something is not tried again."""

from __future__ import annotations


class Lull:
    """So many steps, cut short by any change of who waits and who runs."""

    __slots__ = ("_changes", "_steps", "_until")

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._changes = self._until = -1
        """Changes of the ledger when it began, and the step in which it is over."""

    def begin(self, changes: int, index: int) -> None:
        """It was tried in vain in step ``index``, after so many ``changes`` of the ledger."""
        self._changes, self._until = changes, index + self._steps

    def holds(self, changes: int, index: int) -> bool:
        """Whether trying again in step ``index`` would be in vain."""
        return self._changes == changes and index < self._until
