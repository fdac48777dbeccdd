"""One workload that two engines have to serve alike."""

from __future__ import annotations

from dataclasses import dataclass

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload


@dataclass(frozen=True, slots=True)
class Problem:
    """A workload with all that a replay needs; can be pickled."""

    name: str
    again: str
    """Arguments of the command that take this one alone."""
    workload: Workload
    config: PolicyConfig | None
    """None for the order of the engine as it starts."""
    limits: EngineLimits
    cost: StepCost
    max_steps: int = 1_000_000

    def itself(self) -> Problem:
        """The problem, where something that makes one is expected."""
        return self

    @property
    def policy(self) -> str:
        """What the policy is called in reports, with what it may do to running requests."""
        if self.config is None:
            return "engine's own"
        return f"{self.config.label}, preempt {self.config.preempts()}"

    @property
    def native(self) -> bool:
        """Whether the order is one of the engine's own, which runs without the policy runner."""
        return self.config is None or self.config.native_order() is not None
