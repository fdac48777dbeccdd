"""A clock that counts what the engine has computed, in place of seconds."""

from __future__ import annotations

from batchpolicy.policy import Work
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.state import StateArray


class TokenClock:
    """Tokens computed for anybody; waits by it are in the unit of sizes, on any engine."""

    __slots__ = ("_at_arrival", "_computed")

    def __init__(self) -> None:
        self._computed = 0.0
        self._at_arrival = StateArray()

    def waited(self, requests: Requests) -> FloatArray:
        """What was computed since each request came, shape ``(n,)``."""
        return self._computed - self._at_arrival[requests.slot]

    def arrived(self, rows: Requests) -> None:
        """Their waits begin."""
        self._at_arrival[rows.slot] = self._computed

    def advance(self, work: Work, output_weight: float) -> None:
        """So much was computed; an output token counts as ``output_weight`` of the prompt."""
        prompt, output = int(work.prefill_tokens.sum()), int(work.output_tokens.sum())
        self._computed += prompt + output_weight * output
