"""One workload that two engines have to serve alike."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any

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
    drawn: bool = False
    """It is random, so that what an engine lacks may be left out of it."""

    def without(self, names: Collection[str]) -> Problem:
        """The same with those limits as they are by default, and no request that needs them."""
        limits: dict[str, Any] = {
            f.name: f.default for f in fields(self.limits) if f.name in names
        }
        requests = self.workload.requests
        if "max_loras" in names:
            requests = tuple(replace(r, lora="") for r in requests)
        workload = replace(self.workload, requests=requests)
        return replace(self, limits=replace(self.limits, **limits), workload=workload)

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
