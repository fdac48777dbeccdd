"""Whatever the workload and the policy, what the runner promises holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policies.benefit import Benefit
from batchpolicy.policies.fcfs import FCFS
from batchpolicy.policies.priority import Priority
from batchpolicy.policy import Policy, Step, Work
from batchpolicy.preemption import Preempt, Preemption
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.terms import Fairness
from tests.support.mini_engine import Job, MiniEngine
from tests.support.policies import Arrival, Patched, Shortest

BLOCK = 4


class LatestFirst(Policy):
    """The order most unlike the engine's own."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.seq.astype(np.float64)


def half_held(rows: Requests, step: Step) -> np.ndarray:
    return (rows.seq + step.index) % 2 == 0


def nothing_admissible(rows: Requests, step: Step) -> np.ndarray:
    return np.zeros(len(rows), dtype=np.bool_)


def by_seq(rows: Requests, step: Step) -> np.ndarray:
    return rows.seq % 3


POLICIES = {
    "fcfs": FCFS,
    "priority": Priority,
    "strict": lambda: Priority(ageing_s=float("inf")),
    "benefit": Benefit,
    "fair": lambda: Benefit(lambda_=1e6),
    "latest": LatestFirst,
    "shortest": Shortest,
    "held": lambda: Patched.over(Arrival(), admissible=half_held),
    "all held": lambda: Patched.over(Arrival(), admissible=nothing_admissible),
    "tiered": lambda: Patched.over(Shortest(), tier=by_seq),
}


@st.composite
def jobs(draw: st.DrawFn, *, cancels: bool = True, blocks: bool = True) -> list[Job]:
    n = draw(st.integers(1, 16))
    made = []
    for i in range(n):
        prompt = draw(st.integers(1, 60))
        made.append(
            Job(
                f"r{i}",
                prompt=prompt,
                outputs=draw(st.integers(1, 20)),
                priority=draw(st.integers(-2, 2)),
                tenant=draw(st.sampled_from(["", "a", "b"])),
                ttft_slo_s=draw(st.sampled_from([2.0, float("inf"), float("inf")])),
                arrives=draw(st.integers(0, 25)),
                hit=draw(st.integers(0, prompt - 1)),
            )
        )
        if blocks and draw(st.booleans()):
            made[-1].blocked_for = draw(st.integers(0, 6))
        if cancels and draw(st.integers(0, 4)) == 0:
            made[-1].cancelled = draw(st.integers(0, 40))
    return made


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int | None]:
    return {
        "seats": draw(st.integers(1, 6)),
        "budget": draw(st.integers(6, 40)),
        # The longest request, its output and a step that overshoots always fit.
        "blocks": draw(st.integers(-(-81 // BLOCK), 60)),
        "block_tokens": BLOCK,
        "chunk": draw(st.sampled_from([None, 8])),
        "lag": draw(st.integers(0, 1)),
        "watermark": draw(st.sampled_from([0, 0, 2])),
        "tells_watermark": draw(st.booleans()),
        "max_bypass_s": draw(st.sampled_from([0.0, 0.0, 1.0])),
    }


@pytest.mark.parametrize("name", POLICIES)
@given(work=jobs(), shape=shapes(), preempt=st.sampled_from(["never", "class", "benefit"]))
@settings(max_examples=50, deadline=None)
def test_every_request_is_served_by_plans_that_the_engine_can_carry_out(
    name: str, work: list[Job], shape: dict[str, int | None], preempt: Preempt
) -> None:
    engine = MiniEngine(POLICIES[name](), preempt=preempt, **shape)  # type: ignore[arg-type]
    engine.run(work)
    assert sorted(job.id for job in engine.done) == sorted(job.id for job in work)
    assert all(job.output == job.outputs or job.cancelled < 10**9 for job in work)
    assert max(job.displaced for job in work) <= Preemption(by=preempt).max_each
    assert engine.runner.counters["displaced"] == sum(job.displaced for job in work)
    assert engine.runner.counters["preempted"] == sum(job.preemptions for job in work)
    assert engine.runner.counters["policy_faults"] == 0
    if preempt == "never":
        assert not any(plan.preempt or plan.reorder for plan in engine.plans)


@given(work=jobs(cancels=False), shape=shapes())
@settings(max_examples=100, deadline=None)
def test_columns_stay_true_to_the_engine(work: list[Job], shape: dict[str, int | None]) -> None:
    seen = 0

    def score(rows: Requests, step: Step) -> FloatArray:
        nonlocal seen
        seen += 1
        engine.check_columns(step)
        return -rows.seq.astype(np.float64)

    engine = MiniEngine(Patched.over(Arrival(), benefit=score), **shape)  # type: ignore[arg-type]
    engine.run(work)
    assert seen


@given(work=jobs(blocks=False), shape=shapes())
@settings(max_examples=60, deadline=None)
def test_first_come_is_first_served(work: list[Job], shape: dict[str, int | None]) -> None:
    engine = MiniEngine(FCFS(), preempt=None, **shape | {"max_bypass_s": 0.0})  # type: ignore[arg-type]
    engine.run(work)
    first = list(dict.fromkeys(engine.order))
    arrived = [job.id for job in sorted(work, key=lambda job: job.arrives)]
    assert first == [request_id for request_id in arrived if request_id in first]


class Recording(Benefit):
    """Benefit that remembers what was computed, request by request."""

    _work: dict[int, tuple[int, int]] = PrivateAttr(default_factory=dict)
    _steps: list[int] = PrivateAttr(default_factory=lambda: [0])

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        super().on_computed(rows, work, step)
        columns = zip(rows.seq, work.prefill_tokens, work.output_tokens, strict=True)
        for seq, prefill, output in columns:
            before = self._work.get(int(seq), (0, 0))
            self._work[int(seq)] = before[0] + int(prefill), before[1] + int(output)
        self._steps[0] += work.steps


@given(work=jobs(), shape=shapes())
@settings(max_examples=150, deadline=None)
def test_results_told_by_number_are_booked_like_those_spelt_out(
    work: list[Job], shape: dict[str, int | None]
) -> None:
    again = [replace(job) for job in work]
    told, spelt = (
        MiniEngine(Recording(), steadily=steadily, **shape)  # type: ignore[arg-type]
        for steadily in (True, False)
    )
    told.run(work)
    spelt.run(again)
    assert told.plans == spelt.plans
    assert told.runner.policy._work == spelt.runner.policy._work
    assert told.runner.policy._steps == spelt.runner.policy._steps


def test_results_of_one_token_each_are_told_by_number() -> None:
    engine = MiniEngine(Benefit(), seats=4)
    engine.run([Job(f"r{i}", prompt=4, outputs=50 + i, arrives=i) for i in range(4)])
    # Through prompts, and through ends in between.
    assert engine.counts["told by number"] == 56


WEIGHTS = st.sampled_from([1.0, 2.0])


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=40, max_size=40),
    weights=st.tuples(WEIGHTS, WEIGHTS),
)
@settings(max_examples=60, deadline=None)
def test_two_tenants_that_always_wait_get_counters_close_to_each_other(
    lengths: list[tuple[int, int]], weights: tuple[float, float]
) -> None:
    policy = Benefit(lambda_=1e6, fairness=Fairness(scale_tokens=10_000.0))
    engine = MiniEngine(policy, seats=1, budget=64, blocks=64)
    work = [
        Job(f"{'ab'[i % 2]}{i}", prompt, outputs, tenant="ab"[i % 2], weight=weights[i % 2])
        for i, (prompt, outputs) in enumerate(lengths)
    ]
    # With one seat, a tenant is ahead by one request at most, which costs no more than this.
    bound = max((p + 2 * n) / min(weights) for p, n in lengths)
    engine.coming = work
    while {"a", "b"} <= {j.tenant for j in (*engine.waiting.values(), *engine.coming)}:
        engine.step()
        served = {
            tenant: sum(
                (j.prompt + 2 * j.output) / j.weight
                for j in (*engine.running, *engine.done)
                if j.tenant == tenant
            )
            for tenant in "ab"
        }
        assert abs(served["a"] - served["b"]) <= bound
    assert engine.done
