"""P1: the service of two tenants that both wait differs by a bounded amount.

From the exact events of replays on the real runner and the light engine; see
``ServiceCourse`` for what counts as service and as waiting.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from batchpolicy_tuning.fairness_bench.deliveries import Deliveries
from batchpolicy_tuning.fairness_bench.service import ServiceCourse, bound

COST = FormulaCost(base_s=0.02, token_s=1e-4)
BLOCK = 4
LCF = "batchpolicy_tuning.fairness_bench.least_counter:LeastCounterFirst"


def request(
    i: int, tenant: str, arrival_s: float, prompt: int, output: int, weight: float = 1.0
) -> WorkloadRequest:
    return WorkloadRequest(
        id=f"r{i}",
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output,
        tenant=tenant,
        weight=weight,
    )


def watched(
    workload: Workload, policy: dict[str, object], *, kv_tokens: int, seats: int, budget: int
) -> tuple[Run, ServiceCourse]:
    records: list[StepRecord] = []
    run = LightEngine().replay(
        workload,
        PolicyConfig.model_validate(
            {
                "policy": policy,
                # The order alone: nobody passes, and KV may run out.
                "bounds": {"max_bypass_s": 0},
                "memory": {"look_ahead": False},
            }
        ),
        EngineLimits(
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            kv_blocks=kv_tokens // BLOCK,
            kv_block_tokens=BLOCK,
        ),
        COST,
        observer=records.append,
    )
    return run, ServiceCourse.of(run, Deliveries.of(run, records))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    weights = {t: draw(st.sampled_from([1.0, 1.0, 2.0, 4.0])) for t in "abc"}
    at_s, requests = 0.0, []
    for i in range(draw(st.integers(4, 40))):
        at_s += draw(st.sampled_from([0.0, 0.0, 0.05, 0.5]))
        tenant = draw(st.sampled_from("aabc"))
        prompt, output = draw(st.integers(1, 60)), draw(st.integers(1, 60))
        requests.append(request(i, tenant, at_s, prompt, output, weights[tenant]))
    # Somebody comes last, so that the course does not end while the others wait.
    requests.append(request(len(requests), "a", 60.0, 1, 1, weights["a"]))
    return Workload("w", tuple(requests))


PLAIN = {"within_tenant": "arrival"}
SHORTEST = {"within_tenant": "shortest"}


@pytest.mark.parametrize("params", [PLAIN, SHORTEST], ids=["arrival", "shortest"])
@given(workloads(), st.integers(1, 6), st.sampled_from([8, 64]), st.sampled_from([128, 256, 1024]))
@settings(max_examples=60, deadline=None)
def test_the_gap_is_within_the_bound_under_weights_chunks_and_preemption(
    params: dict[str, object], workload: Workload, seats: int, budget: int, kv_tokens: int
) -> None:
    policy = {"name": "virtual-token-counter", "params": params}
    run, course = watched(workload, policy, kv_tokens=kv_tokens, seats=seats, budget=budget)
    # What can run at once: the cache, or the longest request in every seat.
    longest = max(r.prompt_tokens + r.output_tokens for r in workload.requests)
    assert course.pair_gap() <= bound(run, min(kv_tokens, seats * longest))


def alone_then_both(alone: int) -> Workload:
    """One tenant by itself for so many requests, then another that floods."""
    requests = [request(i, "a", 0.0, 10, 10) for i in range(alone + 20)]
    start_s = 0.05 * alone
    requests += [request(1000 + i, "b", start_s, 10, 10) for i in range(alone + 20)]
    return Workload("w", (*requests, request(9999, "a", 10_000.0, 1, 1)))


def test_without_lift_the_gap_grows_with_the_time_that_one_was_alone() -> None:
    limits = {"kv_tokens": 80, "seats": 4, "budget": 64}
    gaps = []
    for alone in (20, 200):
        run, course = watched(alone_then_both(alone), {"name": LCF}, **limits)
        _, lifted = watched(alone_then_both(alone), {"name": "virtual-token-counter"}, **limits)
        assert lifted.pair_gap() <= bound(run, 80) < math.inf
        gaps.append(course.pair_gap())
    assert gaps[1] > bound(run, 80) > lifted.pair_gap()
    assert gaps[1] > 4 * gaps[0]
