"""The real vLLM scheduler, KV cache manager and prefix cache under a virtual clock."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, ClassVar

from typing_extensions import override

from batchpolicy.bench import Measurement, Progress
from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, EngineLimits, Observer, Run
from batchpolicy.errors import WorkloadError
from batchpolicy.replay import Books, Clock
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload

from batchpolicy_vllm import quiet as quiet  # isort: skip - before vLLM is imported
from batchpolicy_vllm import overhead, seams
from batchpolicy_vllm.front import front_of
from batchpolicy_vllm.loop import Loop
from batchpolicy_vllm.model import block_hasher, make_scheduler, vllm_config
from batchpolicy_vllm.scheduler import scheduler_class

_KEPT_CONFIGS = 64
"""Configurations that are kept, as one takes milliseconds to make and some memory."""


class VllmReplay(Engine):
    """Replays workloads through vLLM's own scheduler; the model is a step cost.

    Everything that decides is vLLM's: queue, batch, KV blocks, prefix cache,
    preemption. Recomputation is work like any other and costs time. Only what waits past
    its ``queue_ttl_s`` in an order of vLLM's own, which has no such limit, the replay ends
    itself, as a front end would.
    """

    name: ClassVar[str] = "vllm"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "priority",
            "preemption",
            "chunk_budget",
            "prefix_cache",
            "tenant_fairness",
            "abort",
            "backfill",
            "queue_ttl",
            "lora",
        }
    )

    without: ClassVar[frozenset[str]] = frozenset(
        {"max_waiting", "encoder_cache_tokens"}
        | (set() if seams.has_watermark() else {"watermark"})
    )
    scheduler_cost_notes: ClassVar[tuple[str, ...]] = overhead.NOTES

    def __init__(self) -> None:
        self._configs: dict[EngineLimits, Any] = {}

    @property
    @override
    def version(self) -> str:
        return f"vLLM {seams.vllm_version}"

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
        _refuse_limits_that_it_lacks(limits, self.without)
        self._refuse_what_it_cannot_do(workload)
        native = config is None or config.native_order() is not None
        if native:
            _refuse_what_cannot_fit(workload, limits)
        _refuse_loras_without_limit(workload, limits)
        if limits not in self._configs:
            if len(self._configs) == _KEPT_CONFIGS:
                del self._configs[next(iter(self._configs))]
            self._configs[limits] = vllm_config(limits)
        clock = Clock()
        cls: type = seams.AsyncScheduler if limits.async_scheduling else seams.Scheduler
        if config is not None:
            cls = scheduler_class(cls, config, clock)
        engine_config = _of_its_own(self._configs[limits])
        scheduler = make_scheduler(cls, engine_config)
        timed = _Timed(scheduler)
        front_of(scheduler, workload, limits, clock, native=native)
        books = Books(workload)
        Loop(scheduler, books, clock, cost, block_hasher(engine_config), seed).run(
            max_steps, observer
        )
        driver = getattr(scheduler, "_driver", None)
        counted = {} if driver is None else dict(sorted(driver.runner.counters.items()))
        run = books.run(
            self.version,
            "engine's own" if config is None else config.label,
            {name: count for name, count in counted.items() if count},
        )
        return replace(run, scheduler_s=timed.seconds)

    @override
    def scheduler_costs(self, progress: Progress, *, quick: bool = False) -> list[Measurement]:
        return overhead.scheduler_costs(progress, quick=quick)

    def _refuse_what_it_cannot_do(self, workload: Workload) -> None:
        fields = [name for need, name in workload.needs().items() if need not in self.capabilities]
        if fields:
            raise WorkloadError(
                f"workload {workload.name!r}: requests have {' and '.join(fields)}, which the "
                "replay on vLLM does not honour yet; leave it out."
            )


def _of_its_own(engine_config: Any) -> Any:
    """The configuration for one scheduler, whose limits a policy may change."""
    own = copy.copy(engine_config)
    own.scheduler_config = copy.copy(engine_config.scheduler_config)
    return own


def _refuse_limits_that_it_lacks(limits: EngineLimits, without: Collection[str]) -> None:
    asked = [
        one.name
        for one in fields(limits)
        if one.name in without and getattr(limits, one.name) != one.default
    ]
    if asked:
        raise WorkloadError(
            f"the replay on vLLM {seams.vllm_version} keeps no limit {' and '.join(asked)}; "
            "leave it out."
        )


def _refuse_loras_without_limit(workload: Workload, limits: EngineLimits) -> None:
    loras = sorted({r.lora for r in workload.requests if r.lora})
    if not loras or limits.max_loras is not None:
        return
    shown = ", ".join(map(repr, loras[:3])) + (", ..." if len(loras) > 3 else "")
    raise WorkloadError(
        f"workload {workload.name!r}: requests need LoRA adapters ({len(loras)}: {shown}), and "
        "the engine is set up without. Say how many of them may run at once: --max-loras N, or "
        "EngineLimits(max_loras=N); vllm serve --enable-lora takes 1 unless told otherwise."
    )


class _Timed:
    """Thread time that a scheduler spends in the two calls of each step."""

    def __init__(self, scheduler: Any) -> None:
        self.seconds = 0.0
        for name in ("schedule", "update_from_output"):
            setattr(scheduler, name, self._timing(getattr(scheduler, name)))

    def _timing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*args)
            finally:
                self.seconds += time.thread_time() - started

        return timed


def _refuse_what_cannot_fit(workload: Workload, limits: EngineLimits) -> None:
    most = min(limits.kv_blocks * limits.kv_block_tokens, limits.max_model_len)
    faults = [
        f"  request {r.id!r}: {r.prompt_tokens} prompt + {r.output_tokens} output tokens"
        for r in workload.requests
        if r.prompt_tokens + min(r.output_tokens, r.max_tokens) > most
    ]
    if faults:
        shown = "\n".join(faults[:10])
        more = f"\n  ... and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise WorkloadError(
            f"workload {workload.name!r}: requests larger than {most} tokens can never run "
            f"(KV pool {limits.kv_blocks} blocks of {limits.kv_block_tokens} tokens, "
            f"max_model_len {limits.max_model_len}):\n{shown}{more}"
        )
