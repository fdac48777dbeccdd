"""Step by step, what batchpolicy leaves to vLLM or does in its place equals vLLM itself."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from batchpolicy.config import Bounds, LimitSettings, Memory, PolicyConfig
from batchpolicy.engine import EngineLimits
from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.workload import Workload
from batchpolicy_vllm import seams
from tests.support.policies import Arrival, Patched, config_of
from tests.support.vllm_bench import Bench, play
from tests.support.vllm_replays import (
    AMPLE_LIMITS,
    EVERY_LIMITS,
    FCFS,
    STRICT_PRIORITY,
    Served,
    assert_no_fault,
    random_workload,
    seeds,
    serve,
)

pytestmark = pytest.mark.engine

WORKLOADS = seeds(200)


ADAPTERS = 4


def has_loras(seed: int) -> bool:
    """Each of the limits is met by workloads with and without adapters."""
    return seed // len(EVERY_LIMITS) % 2 == 1


def limits_of(seed: int) -> EngineLimits:
    limits = EVERY_LIMITS[seed % len(EVERY_LIMITS)]
    return replace(limits, max_loras=1 + seed % 3) if has_loras(seed) else limits


def is_ample(seed: int) -> bool:
    return EVERY_LIMITS[seed % len(EVERY_LIMITS)] in AMPLE_LIMITS


def workload_of(seed: int) -> Workload:
    return random_workload(seed, loras=ADAPTERS if has_loras(seed) else 0)


@functools.cache
def stock(seed: int, policy: str) -> Served:
    """vLLM's own scheduler, started with ``--scheduling-policy policy``."""
    return serve(workload_of(seed), limits_of(seed), policy=policy)


def assert_same(ours: Served, theirs: Served) -> None:
    """The same requests get the same tokens in the same steps, lose KV and end alike."""
    assert ours.plans == theirs.plans
    assert ours.preempted == theirs.preempted
    assert ours.run.digest() == theirs.run.digest()


# What the runner does beyond the order is left out.
PLAIN = {
    "bounds": Bounds(max_bypass_s=0.0),
    "memory": Memory(look_ahead=False),
    "limits": LimitSettings(long_prompts_give_way=False),
}


def in_arrival_order() -> PolicyConfig:
    """Arrival order, without saying that the engine could do it by itself."""
    return config_of(Arrival(), "never", **PLAIN)


def by_priority() -> PolicyConfig:
    """Strict priority, likewise."""

    def benefit(rows: Requests, step: Step) -> FloatArray:
        return -rows.priority.astype(np.float64)

    policy = Patched.over(Arrival(), benefit=benefit)
    return config_of(policy, "never", **PLAIN)


@pytest.mark.parametrize("seed", WORKLOADS)
def test_with_fcfs_every_step_is_that_of_vllm(seed: int) -> None:
    assert_same(serve(workload_of(seed), limits_of(seed), FCFS), stock(seed, "fcfs"))


@pytest.mark.parametrize("seed", WORKLOADS)
def test_with_strict_priority_every_step_is_that_of_vllm(seed: int) -> None:
    ours = serve(workload_of(seed), limits_of(seed), STRICT_PRIORITY)
    assert_same(ours, stock(seed, "priority"))


# Preempted requests wait in front of all others in vLLM. These came later anyway, unless
# adapters let some pass; with enough blocks nothing is preempted.
@pytest.mark.parametrize("seed", [s for s in WORKLOADS if is_ample(s) or not has_loras(s)])
def test_a_policy_of_arrival_order_through_our_queue_gives_the_steps_of_fcfs(seed: int) -> None:
    ours = serve(workload_of(seed), limits_of(seed), in_arrival_order())
    assert_same(ours, stock(seed, "fcfs"))
    assert_no_fault(ours.run.counters)


# When blocks run short, vLLM's priority order takes its victims by priority, and under our
# queue from the tail of what runs; with enough blocks the two must agree.
@pytest.mark.parametrize("seed", [s for s in WORKLOADS if is_ample(s)])
def test_a_policy_of_priority_through_our_queue_gives_the_steps_of_vllm(seed: int) -> None:
    ours = serve(workload_of(seed), limits_of(seed), by_priority())
    assert_same(ours, stock(seed, "priority"))
    assert_no_fault(ours.run.counters)


def test_the_workloads_preempt_cancel_chunk_prompts_and_hit_the_prefix_cache() -> None:
    served, count = [stock(seed, "fcfs") for seed in WORKLOADS], len(WORKLOADS)
    assert sum(len(step) for one in served for step in one.preempted) > count / 2
    assert sum(int((one.run.status == 3).sum()) for one in served) > count / 2
    assert sum(int(one.run.cached_tokens.sum()) for one in served) > 10 * count
    chunked = [one.run.workload.requests[0].prompt_tokens > 64 for one in served]
    assert sum(chunked) > count / 10


def test_no_step_of_vllm_runs_more_adapters_than_it_may_and_the_limit_is_felt() -> None:
    felt = 0
    for seed in filter(has_loras, WORKLOADS):
        served, most = stock(seed, "fcfs"), limits_of(seed).max_loras
        adapters = {r.id: r.lora for r in served.run.workload.requests}
        at_once = [len({adapters[i] for i in seated} - {""}) for seated in served.seated]
        assert max(at_once) <= most
        without = serve(workload_of(seed), replace(limits_of(seed), max_loras=ADAPTERS))
        felt += served.plans != without.plans
    assert felt > len(WORKLOADS) / 4


def played(seed: int, config: PolicyConfig | None, *, in_flight: int) -> Bench:
    """The asynchronous scheduler, ``in_flight`` steps ahead of their results at most."""
    bench = Bench(limits_of(seed), config, base=seams.AsyncScheduler, in_flight=in_flight)
    play(bench, workload_of(seed))
    return bench


def steps_of(bench: Bench) -> list[list[tuple[str, int]]]:
    return [list(plan.items()) for plan in bench.plans]


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("seed", seeds(25))
def test_with_fcfs_the_asynchronous_scheduler_stays_what_it_is(seed: int, in_flight: int) -> None:
    theirs, ours = (played(seed, config, in_flight=in_flight) for config in (None, FCFS))
    assert steps_of(ours) == steps_of(theirs)
    assert ours.preempted == theirs.preempted
    assert ours.answers == theirs.answers


# Not with a budget of tokens that running requests use up: a request whose last token is in
# flight is still reckoned with one token, so that the step after may admit one later.
@pytest.mark.parametrize("seed", [s for s in seeds(50) if is_ample(s)])
def test_arrival_order_through_our_queue_is_fcfs_with_two_steps_in_flight(seed: int) -> None:
    theirs, ours = (played(seed, config, in_flight=2) for config in (None, in_arrival_order()))
    assert steps_of(ours) == steps_of(theirs)
    assert ours.answers == theirs.answers


@pytest.mark.parametrize("base", [seams.Scheduler, seams.AsyncScheduler])
def test_with_fcfs_the_classes_keep_their_bases_and_the_engines_own_queue(base: type) -> None:
    bench = Bench(EVERY_LIMITS[0], FCFS, base=base)
    assert isinstance(bench.scheduler, base)
    assert bench.driver is None
    assert type(bench.scheduler.waiting).__name__ == "FCFSRequestQueue"
