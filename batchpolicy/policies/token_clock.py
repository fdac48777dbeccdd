"""What orders that count waits in tokens have in common: a clock of what the engine computes."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import NonNegativeFloat, PrivateAttr
from typing_extensions import override

from batchpolicy.policy import CodeKind, Policy, Step, Work
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.state import StateArray
from batchpolicy.tune import Tune


class OnTokenClock(Policy):
    """Waits are counted in tokens computed for anybody, the unit of sizes, on any engine."""

    output_weight: Annotated[NonNegativeFloat, Tune(0.1, 100.0, log=True)] = 1.0
    """What an output token counts, in prompt tokens."""

    _computed: float = PrivateAttr(default=0.0)
    _at_arrival: StateArray = PrivateAttr(default_factory=StateArray)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._at_arrival[rows.slot] = self._computed

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        prompt, output = int(work.prefill_tokens.sum()), int(work.output_tokens.sum())
        self._computed += prompt + self.output_weight * output

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        return np.full(len(codes), True)

    def _waited(self, requests: Requests) -> FloatArray:
        """What was computed since each request came, shape ``(n,)``."""
        return self._computed - self._at_arrival[requests.slot]
