"""The engine ``light``: continuous batching of our own, under a virtual clock."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, EngineLimits, Observer, Run
from batchpolicy.errors import WorkloadError
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_sim.loop import Loop
from batchpolicy_sim.refusals import refuse_limits, refuse_part_blocks, refuse_what_cannot_run


class LightEngine(Engine):
    """Replays workloads with the decisions of a real engine, and none of its code.

    Held to the same step plans as that engine's own scheduler. ``semantics`` names the
    engine: how it fills a step and whom it preempts. A request that can never run is
    refused when it comes, and ends nobody's run.
    """

    name: ClassVar[str] = "light"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "priority",
            "preemption",
            "chunk_budget",
            "prefix_cache",
            "sessions",
            "tenant_fairness",
            "abort",
            "backfill",
            "queue_ttl",
            "queue_limit",
            "lora",
            "blocked_requests",
            "follow_ups",
            "encoder_budget",
        }
    )
    semantics: ClassVar[str] = "vllm"

    without: ClassVar[frozenset[str]] = frozenset({"async_scheduling"})

    @property
    @override
    def version(self) -> str:
        return f"light, as {self.semantics}"

    @override
    def replay(
        self,
        workload: Workload,
        config: PolicyConfig | None,
        limits: EngineLimits,
        cost: StepCost,
        *,
        seed: int = 0,
        max_steps: int = 10_000_000,
        observer: Observer | None = None,
    ) -> Run:
        fields = [name for need, name in workload.needs().items() if need not in self.capabilities]
        if fields:
            raise WorkloadError(
                f"workload {workload.name!r}: requests have {' and '.join(fields)}, which the "
                "light engine does not honour; leave it out."
            )
        refuse_what_cannot_run(workload, limits)
        refuse_limits(limits, self.without, self.version)
        if self.whole_block_chunks:
            refuse_part_blocks(limits, self.version)
        loop = Loop(workload, limits, cost, config, self.semantics)
        loop.run(max_steps, observer)
        driver = loop.driver
        counted = {} if driver is None else dict(sorted(driver.runner.counters.items()))
        return loop.books.run(
            self.version,
            "engine's own" if config is None else config.label,
            loop.now_s,
            {name: count for name, count in counted.items() if count},
        )


class LightSglang(LightEngine):
    """The same with SGLang's steps: prefills before decodes, one prompt midway."""

    name: ClassVar[str] = "light-sglang"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "priority",
            "preemption",
            "chunk_budget",
            "tenant_fairness",
            "abort",
            "backfill",
            "queue_ttl",
            "follow_ups",
        }
    )
    semantics: ClassVar[str] = "sglang"
    without: ClassVar[frozenset[str]] = frozenset(
        {
            "async_scheduling",
            "prefix_cache",
            "watermark",
            "long_prefill_token_threshold",
            "max_loras",
            "max_waiting",
            "encoder_cache_tokens",
        }
    )
    whole_block_chunks: ClassVar[bool] = True
