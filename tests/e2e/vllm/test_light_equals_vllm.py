"""The light engine takes the steps of vLLM's own scheduler, to the last block and time."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter

import numpy as np
import pytest

from batchpolicy.config import Bounds, LimitSettings, PolicyConfig, PolicySpec, Queue
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.policy import Limits, Ranking, Step
from batchpolicy.requests import Requests, Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from batchpolicy_vllm import seams
from batchpolicy_vllm.books import Books
from batchpolicy_vllm.loop import Clock, Loop
from batchpolicy_vllm.model import block_hasher, make_scheduler
from batchpolicy_vllm.scheduler import scheduler_class
from tests.support.policies import Arrival, Patched, config_of
from tests.support.vllm_replays import (
    BENEFIT,
    COST,
    FCFS,
    STRICT_PRIORITY,
    counters,
    engine_config,
    seeds,
)

pytestmark = pytest.mark.engine

WORKLOADS = seeds(200)
MAX_STEPS = 20_000


def _config(name: str, **parts: object) -> PolicyConfig:
    return PolicyConfig.model_validate({"policy": PolicySpec(name=name), **parts})


def _restless() -> PolicyConfig:
    """The shortest first under limits that change, some held back for a while, some refused."""

    def limits(step: Step) -> Limits:
        turn = step.index // 3 % 4
        return Limits(2 + turn, 16 + 8 * turn, 8 + 8 * turn)

    def rank(waiting: Requests, step: Step) -> Ranking:
        held = (waiting.seq % 3 == 0) & (step.now_s - waiting.arrival_s < 0.1)
        return Ranking(
            -waiting.prompt_tokens.astype(np.float64),
            admissible=~held,
            refuse=waiting.prompt_tokens > 120,
        )

    return config_of(Patched.over(Arrival(), limits=limits, rank=rank), "class")


NATIVE = (None, FCFS, STRICT_PRIORITY)
PLANNED = (
    BENEFIT,
    _config("benefit", preempt="never", bounds=Bounds(max_bypass_s=0.0)),
    _config("edf", preempt="class"),
    _config("priority"),
    _config(
        "benefit",
        queue=Queue(ttl_s=0.4),
        limits=LimitSettings(max_num_seqs=3, max_num_batched_tokens=40, prefill_chunk=24),
    ),
    _config("fcfs", preempt="class", queue=Queue(ttl_s=1.0)),
    _restless(),
)
LIMITED = (PLANNED[4], PLANNED[6])


def policy_of(seed: int) -> PolicyConfig | None:
    kind = NATIVE if seed % 2 else PLANNED
    config = kind[seed // 2 % len(kind)]
    if config in LIMITED and not case(seed)[1].chunked_prefill:
        # Without chunks, a prompt larger than such a limit would wait for ever, on vLLM as well.
        return BENEFIT
    return config


def random_limits(rng: random.Random) -> EngineLimits:
    """Ample or tight seats, tokens and blocks, with or without caps and prefix cache."""
    chunked = rng.random() < 0.85
    return EngineLimits(
        max_num_seqs=rng.choice([2, 4, 8, 16]),
        max_num_batched_tokens=rng.choice([16, 32, 48, 64, 128, 256]) if chunked else 280,
        kv_blocks=rng.choice([20, 24, 30, 60, 400]),
        kv_block_tokens=16,
        max_model_len=280,
        prefix_cache=rng.random() < 0.5,
        long_prefill_token_threshold=rng.choice([0, 0, 0, 16, 20]),
        max_loras=rng.choice([None, None, 1, 2]),
        watermark=rng.choice([0.0, 0.0, 0.03, 0.15]),
        chunked_prefill=chunked,
    )


def random_workload(rng: random.Random, limits: EngineLimits, count: int = 24) -> Workload:
    """Bursts of mixed lengths, classes and adapters; shared prefixes, sessions, cancellations.

    Ids in order of submission, since vLLM breaks ties of priority and time by id.
    """
    now_s = 0.0
    requests: list[WorkloadRequest] = []
    for i in range(count):
        now_s += rng.choice([0.0, 0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.4)])
        prompt = rng.choice([rng.randint(1, 40), rng.randint(40, 200), 16 * rng.randint(1, 8)])
        output = rng.choice([1, rng.randint(1, 50), rng.randint(20, 70)])
        shares = rng.choice(["", "", "prefix", "blocks", "session"])
        blocks = tuple(rng.choice([1, 2, 3]) for _ in range(rng.randint(1, 5)))
        size = rng.choice([16, 20, 32])
        requests.append(
            WorkloadRequest(
                id=f"r{i:02}",
                arrival_s=now_s,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=rng.choice([output, output + 10, max(output - 3, 1)]),
                priority=rng.choice([-3, 0, 0, 10]),
                tenant=rng.choice(["", "x", "y"]),
                ttft_slo_s=rng.choice([0.1, 5.0, math.inf]),
                tpot_slo_s=rng.choice([0.02, math.inf]),
                deadline_s=now_s + rng.choice([0.5, 3.0, math.inf]),
                weight=rng.choice([1.0, 2.0]),
                session=rng.choice(["s", "t"]) if shares == "session" else "",
                prefix_id=rng.choice(["a", "b"]) if shares in ("prefix", "session") else "",
                prefix_tokens=rng.choice([16, 32, 70]),
                prefix_blocks=blocks[: -(-prompt // size)] if shares == "blocks" else (),
                prefix_block_tokens=size,
                lora=rng.choice(["", "A", "B", "C"]) if limits.max_loras else "",
                queue_ttl_s=rng.choice([math.inf, math.inf, math.inf, 0.3]),
                cancel_at_s=now_s + rng.uniform(0.0, 1.0) if rng.random() < 0.1 else math.inf,
                predicted_output_tokens=rng.choice([math.nan, float(output)]),
            )
        )
    return Workload("random", tuple(requests))


def case(seed: int) -> tuple[Workload, EngineLimits]:
    rng = random.Random(seed)
    limits = random_limits(rng)
    return random_workload(rng, limits), limits


class Steps(list[StepRecord]):
    """Keeps each step that it is called with."""

    def __call__(self, step: StepRecord, /) -> None:
        self.append(step)


def on_vllm(seed: int, config: PolicyConfig | None) -> tuple[Run, Steps]:
    workload, limits = case(seed)
    clock = Clock()
    cls = seams.Scheduler if config is None else scheduler_class(seams.Scheduler, config, clock)
    settings = engine_config(limits)
    scheduler = make_scheduler(cls, settings)
    books, steps = Books(workload), Steps()
    Loop(scheduler, books, clock, COST, block_hasher(settings), 0).run(MAX_STEPS, steps)
    return books.run("vLLM", "", counters(scheduler)), steps


def on_light(seed: int, config: PolicyConfig | None, *, watched: bool) -> tuple[Run, Steps]:
    (workload, limits), steps = case(seed), Steps()
    run = LightEngine().replay(
        workload, config, limits, COST, max_steps=MAX_STEPS, observer=steps if watched else None
    )
    return run, steps


def seen(steps: Steps) -> list[object]:
    """All that an observer is told of each step."""
    return [
        (
            step.index, step.start_s, step.duration_s, list(step.tokens.items()),
            step.preempted, step.running, step.waiting, step.free_kv_blocks,
        )
        for step in steps
    ]  # fmt: skip


OFTEN = {
    "cached": 0.2,
    "recomputed": 0.2,
    "aborted": 0.3,
    "expired": 0.2,
    "refused": 0.02,
    "displaced": 0.05,
    "adapters": 0.3,
    "watermark": 0.3,
    "whole prompts": 0.05,
}
"""In what part of the workloads each is seen at least."""


@functools.cache
def served(seed: int) -> tuple[Run, Steps]:
    return on_vllm(seed, policy_of(seed))


@pytest.mark.parametrize("seed", WORKLOADS)
def test_every_step_and_every_time_is_that_of_vllm(seed: int) -> None:
    theirs, their_steps = served(seed)
    ours, our_steps = on_light(seed, policy_of(seed), watched=True)
    assert seen(our_steps) == seen(their_steps)
    assert ours.digest() == theirs.digest()
    assert ours.peak_waiting == theirs.peak_waiting
    if policy_of(seed) in PLANNED:
        counted = {name: count for name, count in theirs.counters.items() if count}
        assert ours.counters == counted


@pytest.mark.parametrize("seed", WORKLOADS)
def test_unwatched_it_looks_at_fewer_steps_and_comes_to_the_same(seed: int) -> None:
    ours, _ = on_light(seed, policy_of(seed), watched=False)
    assert ours.digest() == served(seed)[0].digest()


def test_the_workloads_bring_out_what_is_compared() -> None:
    count, seen_all = len(WORKLOADS), Counter[str]()
    for seed in WORKLOADS:
        run, steps = served(seed)
        limits = case(seed)[1]
        seen_all["preempted"] += sum(len(step.preempted) for step in steps)
        seen_all["cached"] += run.cached_tokens.sum() > 0
        seen_all["recomputed"] += run.recomputed_tokens.sum() > 0
        seen_all["aborted"] += (run.status == int(Status.ABORTED)).any()
        seen_all["expired"] += (run.status == int(Status.EXPIRED)).any()
        seen_all["refused"] += (run.status == int(Status.REFUSED)).any()
        seen_all["displaced"] += run.counters.get("displaced", 0) > 0
        seen_all["adapters"] += bool(limits.max_loras)
        seen_all["watermark"] += limits.watermark > 0
        seen_all["whole prompts"] += not limits.chunked_prefill
    assert seen_all["preempted"] > count
    rare = {what: seen_all[what] for what, part in OFTEN.items() if seen_all[what] < part * count}
    assert rare == {}
