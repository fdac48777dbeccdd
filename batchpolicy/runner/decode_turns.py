"""Steps for decodes, where prefills and decodes cannot share one."""

from __future__ import annotations


class DecodeTurns:
    """Knows when running answers have waited long enough for steps of prefills.

    An engine that prefills whenever it can would hold them up for as long as prompts come.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._since_s = 0.0
        """When decodes last began a step, or there was none."""

    def due(self, now_s: float, decodes: int) -> bool:
        """Whether the next step is theirs; ``decodes`` requests are past their prompts."""
        if decodes == 0:
            self._since_s = now_s
        return now_s - self._since_s >= self._gap_s > 0.0

    def taken(self, now_s: float) -> None:
        """A step of decodes was scheduled."""
        self._since_s = now_s
