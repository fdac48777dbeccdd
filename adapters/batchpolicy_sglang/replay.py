"""The real SGLang scheduler, radix cache and KV pool under a virtual clock."""

from __future__ import annotations

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

from batchpolicy_sglang import quiet as quiet  # isort: skip - before SGLang is imported
from batchpolicy_sglang import overhead
from batchpolicy_sglang.attach import attach
from batchpolicy_sglang.clients import Clients
from batchpolicy_sglang.driver import Driver
from batchpolicy_sglang.front import Front
from batchpolicy_sglang.hooks import hook_retraction
from batchpolicy_sglang.loop import Loop
from batchpolicy_sglang.model import make_scheduler
from batchpolicy_sglang.seams import names


class SglangReplay(Engine):
    """Replays workloads through SGLang's own scheduler; the model is a step cost.

    Everything that decides is SGLang's: queue, prefill adder, batches, radix cache,
    retraction. Each replay has a scheduler of its own, so that nothing is left over.
    """

    name: ClassVar[str] = "sglang"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "priority",
            "preemption",
            "chunk_budget",
            "prefix_cache",
            "tenant_fairness",
            "abort",
            "backfill",
            "lora",
            "queue_ttl",
        }
    )

    without: ClassVar[frozenset[str]] = frozenset(
        {
            "watermark",
            "long_prefill_token_threshold",
            "max_waiting",
            "encoder_cache_tokens",
        }
    )
    whole_block_chunks: ClassVar[bool] = True
    scheduler_cost_notes: ClassVar[tuple[str, ...]] = overhead.NOTES

    def __init__(self, schedule_policy: str = "fcfs") -> None:
        """``schedule_policy`` is SGLang's order where no policy is given."""
        self._schedule_policy = schedule_policy

    @property
    @override
    def version(self) -> str:
        return f"SGLang {names.sglang_version}"

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
        self._refuse_what_it_cannot_do(workload)
        _refuse_limits_that_it_lacks(limits, self.without)
        _refuse_loras_without_a_limit(workload, limits)
        clock, books = Clock(), Books(workload)
        order = self._schedule_policy if config is None else config.native_order()
        front = Front(workload, limits, native=order is not None)
        if order is not None:
            _refuse_what_cannot_fit(workload, limits, front)

        def told(message: Any) -> None:
            loop.told(message)

        scheduler = make_scheduler(limits, told, order=order or "fcfs")
        driver: Driver | None = None
        if config is not None and order is None:
            arrivals = {r.id: r.arrival_s for r in workload.requests}
            hook_retraction()
            driver = Driver(scheduler, config, clock, arrival_s_of=arrivals.__getitem__)
            attach(scheduler, driver)
        timed = _Timed(scheduler)
        clients = Clients(
            workload, prefix_cache=limits.prefix_cache, seed=seed, planned=driver is not None
        )
        loop = Loop(scheduler, books, clock, cost, clients, front)
        loop.run(max_steps, observer)
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
                "replay on SGLang does not honour; leave it out."
            )


def _refuse_limits_that_it_lacks(limits: EngineLimits, without: Collection[str]) -> None:
    asked = [
        f.name
        for f in fields(limits)
        if f.name in without and getattr(limits, f.name) != f.default
    ]
    if asked:
        raise WorkloadError(
            f"the replay on SGLang {names.sglang_version} keeps no limit {' and '.join(asked)}; "
            "leave it out."
        )
    page, chunk = limits.kv_block_tokens, limits.max_num_batched_tokens
    if limits.chunked_prefill and chunk % page:
        raise WorkloadError(
            f"max_num_batched_tokens is {chunk}, expected a multiple of the {page} tokens of a KV "
            "block: SGLang cuts prompts at the ends of its pages."
        )


def _refuse_loras_without_a_limit(workload: Workload, limits: EngineLimits) -> None:
    if limits.max_loras is None and any(r.lora for r in workload.requests):
        raise WorkloadError(
            f"workload {workload.name!r}: requests name adapters; say how many may run at once: "
            "--max-loras N, or EngineLimits(max_loras=N), of which requests without one take one; "
            "SGLang's --max-loras-per-batch is 8 unless told otherwise."
        )


def _refuse_what_cannot_fit(workload: Workload, limits: EngineLimits, front: Front) -> None:
    faults = [
        f"  request {r.id!r}: {r.prompt_tokens} prompt + {r.output_tokens} output tokens"
        for r in workload.requests
        if r.id in front.never
    ]
    if faults:
        shown = "\n".join(faults[:10])
        more = f"\n  ... and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise WorkloadError(
            f"workload {workload.name!r}: SGLang would cut these requests short (KV pool "
            f"{limits.kv_blocks} blocks of {limits.kv_block_tokens} tokens, of which it keeps a "
            f"page and some tokens; max_model_len {limits.max_model_len}):\n{shown}{more}"
        )


class _Timed:
    """Thread time that a scheduler spends in the two calls of each step."""

    def __init__(self, scheduler: Any) -> None:
        self.seconds = 0.0
        for name in ("get_next_batch_to_run", "process_batch_result"):
            setattr(scheduler, name, self._timing(getattr(scheduler, name)))

    def _timing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started

        return timed
