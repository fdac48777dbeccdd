"""An engine that is the light one but for a fault, to see that the fault is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.errors import WorkloadError
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_sim import LightEngine


class FewerBlocks(LightEngine):
    """Has one KV block less than it says."""

    name: ClassVar[str] = "fewer-blocks"

    @override
    def replay(
        self,
        workload: Workload,
        config: PolicyConfig | None,
        limits: EngineLimits,
        cost: StepCost,
        **others: Any,
    ) -> Run:
        limits = replace(limits, kv_blocks=limits.kv_blocks - 1)
        return super().replay(workload, config, limits, cost, **others)


class LateEnd(LightEngine):
    """Takes the same steps, and says of the last request that it ended later."""

    name: ClassVar[str] = "late-end"

    @override
    def replay(self, *given: Any, **others: Any) -> Run:
        run = super().replay(*given, **others)
        run.finished_s[-1] += 1e-9
        return run


class Swapped(LightEngine):
    """Names the requests of a step in another order."""

    name: ClassVar[str] = "swapped"

    @override
    def replay(self, *given: Any, observer: Any = None, **others: Any) -> Run:
        def told(step: StepRecord) -> None:
            observer(replace(step, tokens=dict(reversed(list(step.tokens.items())))))

        return super().replay(*given, observer=told if observer is not None else None, **others)


class Timid(LightEngine):
    """Refuses whatever has a watermark."""

    name: ClassVar[str] = "timid"

    @override
    def replay(
        self,
        workload: Workload,
        config: PolicyConfig | None,
        limits: EngineLimits,
        cost: StepCost,
        **others: Any,
    ) -> Run:
        if limits.watermark:
            raise WorkloadError("keeps no watermark.")
        return super().replay(workload, config, limits, cost, **others)


class Breaks(LightEngine):
    """Has a fault of its own in mid-run."""

    name: ClassVar[str] = "breaks"

    @override
    def replay(self, *given: Any, observer: Any = None, **others: Any) -> Run:
        def told(step: StepRecord) -> None:
            observer(step)
            if step.index == 20:
                raise KeyError("lost")

        return super().replay(*given, observer=told, **others)


class Remembers(LightEngine):
    """Takes over something of the first workload that it serves."""

    name: ClassVar[str] = "remembers"

    def __init__(self) -> None:
        self._served = False

    @override
    def replay(self, *given: Any, **others: Any) -> Run:
        run = super().replay(*given, **others)
        if self._served:
            run.finished_s[-1] += 1e-9
        self._served = True
        return run
