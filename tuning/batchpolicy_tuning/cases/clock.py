"""The reference clock of the cases."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from batchpolicy.step_cost import StepCost, StepShape
from batchpolicy_tuning.cases.schema import Timing


@dataclass(frozen=True)
class ReferenceClock(StepCost):
    """A step takes its base, and more for each token of a prefill and each decode."""

    timing: Timing

    @override
    def __call__(self, shape: StepShape) -> float:
        return self.seconds(shape.prefill_tokens, shape.decodes)

    def seconds(self, prefill_tokens: int, decodes: int) -> float:
        """Duration of a step; 0 for an empty one."""
        if not prefill_tokens + decodes:
            return 0.0
        t = self.timing
        return (
            t.step_base_s + t.prefill_s_per_token * prefill_tokens + t.decode_s_per_seq * decodes
        )
