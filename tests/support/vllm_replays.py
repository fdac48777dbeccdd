"""vLLM's scheduler under small random workloads, in the adapter's loop or with steps in flight."""

from __future__ import annotations

import copy
import functools
import math
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchpolicy.config import Memory, PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.replay import Books, Clock
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_vllm import seams
from batchpolicy_vllm.loop import Loop
from batchpolicy_vllm.model import block_hasher, make_scheduler, vllm_config
from batchpolicy_vllm.scheduler import scheduler_class

COST = FormulaCost(base_s=0.01, token_s=0.0001)

# Block shortage with and without a prefix cache, then blocks for all.
TIGHT = EngineLimits(
    max_num_seqs=8,
    max_num_batched_tokens=64,
    kv_blocks=24,
    kv_block_tokens=16,
    max_model_len=512,
)
TIGHT_CACHED = EngineLimits(
    max_num_seqs=8,
    max_num_batched_tokens=48,
    kv_blocks=26,
    kv_block_tokens=16,
    max_model_len=512,
    prefix_cache=True,
)
TIGHT_CAPPED = EngineLimits(
    max_num_seqs=8,
    max_num_batched_tokens=48,
    kv_blocks=26,
    kv_block_tokens=16,
    max_model_len=512,
    prefix_cache=True,
    long_prefill_token_threshold=20,
)
AMPLE = EngineLimits(
    max_num_seqs=4,
    max_num_batched_tokens=32,
    kv_blocks=400,
    kv_block_tokens=16,
    max_model_len=512,
    long_prefill_token_threshold=16,
)
AMPLE_CACHED = EngineLimits(
    max_num_seqs=6,
    max_num_batched_tokens=128,
    kv_blocks=400,
    kv_block_tokens=16,
    max_model_len=512,
    prefix_cache=True,
)
EVERY_LIMITS = (TIGHT, TIGHT_CACHED, TIGHT_CAPPED, AMPLE, AMPLE_CACHED)
AMPLE_LIMITS = (AMPLE, AMPLE_CACHED)

FCFS = PolicyConfig(policy=PolicySpec(name="fcfs"))
STRICT_PRIORITY = PolicyConfig(
    policy=PolicySpec(name="priority", params={"ageing_s": "inf"}), preempt="never"
)
BENEFIT = PolicyConfig(policy=PolicySpec(name="benefit"))
GREEDY = BENEFIT.model_copy(update={"memory": Memory(look_ahead=False)})
"""The same with admission as long as blocks are free, so that they run out."""


def seeds(most: int, first: int = 0) -> range:
    """Seeds of so many workloads, or of fewer if ``BATCHPOLICY_WORKLOADS`` says so."""
    return range(first, first + min(most, int(os.environ.get("BATCHPOLICY_WORKLOADS", most))))


def random_workload(seed: int, *, count: int = 20, loras: int = 0) -> Workload:
    """Bursts of mixed lengths and priorities; some share prefixes, some are cancelled.

    Ids in order of submission, since vLLM breaks ties of priority and time by id. Most
    requests need one of so many ``loras``; apart from that, equal seeds give equal requests.
    """
    rng, adapters = random.Random(seed), random.Random(seed)
    now_s = 0.0
    requests: list[WorkloadRequest] = []
    for i in range(count):
        # Often several at one instant, so that ties are broken too.
        now_s += rng.choice([0.0, 0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.3)])
        prompt = rng.choice([rng.randint(1, 40), rng.randint(40, 200)])
        output = rng.randint(1, 50)
        prefix = rng.choice(["", "", "a", "b"])
        priority = rng.choice([-3, 0, 0, 10])
        requests.append(
            WorkloadRequest(
                id=f"r{i:02}",
                arrival_s=now_s,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=rng.choice([output, output + 20, max(output - 3, 1)]),
                priority=priority,
                tenant=rng.choice(["", "x", "y"]),
                ttft_slo_s=rng.choice([0.1 if priority < 0 else 5.0, math.inf]),
                prefix_id=prefix,
                prefix_tokens=rng.choice([16, 32, 70]) if prefix else 0,
                cancel_at_s=now_s + rng.uniform(0.0, 1.0) if rng.random() < 0.1 else math.inf,
                lora=adapters.choice(["", *(f"lora-{k}" for k in range(loras))]),
            )
        )
    return Workload(f"random-{seed}", tuple(requests))


def engine_config(
    limits: EngineLimits, *, policy: str = "fcfs", asynchronous: bool = False
) -> Any:
    """A vLLM configuration of one's own."""
    config = copy.deepcopy(_engine_config(limits))
    config.scheduler_config.policy = policy
    # The CPU platform turns it off for its own executor, which is not used here.
    config.scheduler_config.async_scheduling = asynchronous
    return config


@functools.cache
def _engine_config(limits: EngineLimits) -> Any:
    return vllm_config(limits)


@dataclass
class Served:
    """What a scheduler did with a workload."""

    scheduler: Any
    run: Run
    steps: list[StepRecord]
    seated: list[list[str]]
    """Requests with a seat, after each step was scheduled."""

    @property
    def plans(self) -> list[list[tuple[str, int]]]:
        """Tokens of each request, in the engine's order, by step."""
        return [list(step.tokens.items()) for step in self.steps]

    @property
    def preempted(self) -> list[tuple[str, ...]]:
        """Requests that lost their KV, by step."""
        return [step.preempted for step in self.steps]


def serve(
    workload: Workload,
    limits: EngineLimits,
    config: PolicyConfig | None = None,
    *,
    base: type | None = None,
    policy: str = "fcfs",
    asynchronous: bool = False,
) -> Served:
    """One step after another on ``base``, under ``config`` or, with None, on ``base`` itself.

    ``policy`` is the scheduling policy that the engine is started with.
    """
    base = base or seams.Scheduler
    clock = Clock()
    cls = base if config is None else scheduler_class(base, config, clock)
    settings = engine_config(limits, policy=policy, asynchronous=asynchronous)
    scheduler = make_scheduler(cls, settings)
    books, steps, seated = Books(workload), list[StepRecord](), list[list[str]]()

    def note(step: StepRecord) -> None:
        steps.append(step)
        seated.append([request.request_id for request in scheduler.running])

    Loop(scheduler, books, clock, COST, block_hasher(settings), 0).run(5_000, note)
    return Served(scheduler, books.run("vLLM", "", counters(scheduler)), steps, seated)


def counters(scheduler: Any) -> dict[str, int]:
    """What the runner of a scheduler counted; nothing where the engine's own order stands."""
    driver = getattr(scheduler, "_driver", None)
    return {} if driver is None else dict(driver.runner.counters)


def free_blocks(scheduler: Any) -> int:
    """KV blocks that nobody holds."""
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def assert_no_fault(counted: Mapping[str, int]) -> None:
    """Neither the policy nor the adapter failed, and their books were never put right."""
    kinds = ("adapter_faults", "policy_faults", "hook_faults", "reconciled", "forced")
    assert {kind: counted[kind] for kind in kinds if counted.get(kind)} == {}
