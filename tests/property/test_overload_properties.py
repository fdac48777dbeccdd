"""Overload: who is refused, who expires, and what those cost that leave."""

from __future__ import annotations

import gc
import math
import sys
from collections import Counter
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.config import Bounds, PolicyConfig, PolicySpec, Queue
from batchpolicy.engine import EngineLimits, StepRecord
from batchpolicy.policies.virtual_token_counter import VirtualTokenCounter
from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, IntArray, Requests, Status
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from batchpolicy_tuning.metrics import measure
from tests.support.policies import Arrival, Patched
from tests.support.rig import Rig

COST = FormulaCost(base_s=0.01, token_s=1e-4)
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=14)
"""Tier and benefit of each row, often equal."""


def _ranking(rows: list[tuple[int, int]]) -> Patched:
    """A policy that gives rows, in order of submission, these tiers and benefits."""

    def tier(requests: Requests, step: Step) -> IntArray:
        return np.array([rows[seq][0] for seq in requests.seq.tolist()], dtype=np.int64)

    def benefit(requests: Requests, step: Step) -> FloatArray:
        return np.array([rows[seq][1] for seq in requests.seq.tolist()], dtype=np.float64)

    return Patched.over(Arrival(), tier=tier, benefit=benefit)


@given(ROWS, st.integers(0, 14), st.integers(0, 4))
@settings(deadline=None)
def test_a_full_queue_refuses_the_last_in_rank_and_of_equals_the_latest(
    rows: list[tuple[int, int]], most: int, seats: int
) -> None:
    rig = Rig(_ranking(rows), preempt="never", parts={"queue": Queue(max_waiting=most)})
    names = [f"r{i}" for i in range(len(rows))]
    rig.arrive(*names)
    plan = rig.plan(seats=seats)
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1], i))
    # The first take the seats, those after them wait, and the rest goes.
    assert [i for i, _ in plan.refuse] == [names[i] for i in order[seats + most :][::-1]]
    assert plan.admit[:seats] == [names[i] for i in order[:seats]]
    assert rig.counters["refused"] == max(len(rows) - seats - most, 0)
    assert rig.counters["expired"] == 0


@given(ROWS, st.integers(0, 14), st.lists(st.booleans(), min_size=14, max_size=14))
@settings(deadline=None)
def test_overdue_requests_are_refused_after_all_others(
    rows: list[tuple[int, int]], most: int, early: list[bool]
) -> None:
    parts = {"queue": Queue(max_waiting=most), "bounds": Bounds(max_wait_s=5.0)}
    rig = Rig(_ranking(rows), preempt="never", parts=parts)
    rig.now_s = 100.0
    names = [f"r{i}" for i in range(len(rows))]
    for i, name in enumerate(names):
        rig.arrive(name, arrival_s=90.0 if early[i] else 100.0)
    plan = rig.plan(seats=0)
    order = sorted(range(len(rows)), key=lambda i: (not early[i], rows[i][0], -rows[i][1], i))
    assert [i for i, _ in plan.refuse] == [names[i] for i in order[most:][::-1]]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=12))
@settings(deadline=None)
def test_time_in_the_queue_is_over_in_the_first_step_after_it_though_the_batch_is_full(
    requests: list[tuple[int, int]],
) -> None:
    rig = Rig(Arrival(), max_running=1)
    rig.running("runs")
    begun = rig.now_s
    coming = {f"r{i}": facts for i, facts in enumerate(requests)}
    gone: dict[str, float] = {}
    for now in range(20):
        for name, (at, ttl) in coming.items():
            if at == now:
                rig.arrive(name, queue_ttl_s=ttl)
        plan = rig.plan(seats=0)
        assert plan.admit == []
        gone |= {i: rig.now_s for i, _ in plan.refuse}
        rig.decode("runs")
    # The next tick stamps the arrival; ticks are a second apart.
    assert gone == {name: begun + at + 1 + ttl for name, (at, ttl) in coming.items()}
    assert rig.counters["expired"] == len(coming)
    assert rig.counters["refused"] == 0


@st.composite
def overloads(draw: st.DrawFn) -> Workload:
    requests: list[WorkloadRequest] = []
    now_s = 0.0
    for i in range(draw(st.integers(2, 25))):
        now_s += draw(st.sampled_from([0.0, 0.0, 0.01, 0.05]))
        output = draw(st.integers(1, 30))
        requests.append(
            WorkloadRequest(
                id=f"r{i:02}",
                arrival_s=now_s,
                prompt_tokens=draw(st.integers(1, 60)),
                output_tokens=output,
                max_tokens=output,
                priority=draw(st.integers(0, 2)),
                tenant=draw(st.sampled_from(["a", "b", "c"])),
                ttft_slo_s=draw(st.sampled_from([math.inf, 0.1, 10.0])),
                queue_ttl_s=draw(st.sampled_from([math.inf, 0.05, 0.2])),
                cancel_at_s=now_s + draw(st.sampled_from([math.inf, math.inf, 0.02, 0.15])),
            )
        )
    return Workload("overload", tuple(requests))


LIMITS = EngineLimits(
    max_num_seqs=2, max_num_batched_tokens=32, kv_blocks=40, kv_block_tokens=4, max_model_len=128
)
SPECS = ["benefit", "virtual-token-counter", "edf", "priority", "shortest-first"]


@given(overloads(), st.sampled_from(SPECS), st.sampled_from([0, 2, 5]))
@settings(max_examples=60, deadline=None)
def test_every_request_ends_once_and_costs_nothing_after_its_end(
    workload: Workload, name: str, most: int
) -> None:
    config = PolicyConfig(policy=PolicySpec(name=name), queue=Queue(max_waiting=most))
    steps: list[StepRecord] = []
    run = LightEngine().replay(workload, config, LIMITS, COST, observer=steps.append)
    assert (run.status >= int(Status.FINISHED)).all()
    ends = Counter(run.status.tolist())
    assert run.counters.get("expired", 0) == ends[int(Status.EXPIRED)]
    assert run.counters.get("refused", 0) == ends[int(Status.REFUSED)]
    for place, r in enumerate(workload.requests):
        status, ended_s = Status(run.status[place]), float(run.finished_s[place])
        if status in (Status.EXPIRED, Status.REFUSED):
            assert math.isnan(run.first_scheduled_s[place])
            assert not any(r.id in step.tokens for step in steps)
        if status is Status.EXPIRED:
            # In the first step that starts after its time, at whose end its client hears.
            due_s = r.arrival_s + r.queue_ttl_s
            late = [s for s in steps if s.start_s >= due_s and s.start_s + s.duration_s < ended_s]
            assert ended_s >= due_s and len(late) <= 1
        if status is Status.ABORTED:
            after = [
                step for step in steps if step.start_s > r.cancel_at_s and r.id in step.tokens
            ]
            # A step that runs when the client leaves is the last.
            assert not after


@given(overloads(), st.sampled_from(SPECS))
@settings(max_examples=40, deadline=None)
def test_who_is_refused_or_expires_stays_in_the_denominators(
    workload: Workload, name: str
) -> None:
    workload = replace(
        workload, requests=tuple(replace(r, cancel_at_s=math.inf) for r in workload.requests)
    )
    config = PolicyConfig(policy=PolicySpec(name=name), queue=Queue(max_waiting=1))
    run = LightEngine().replay(workload, config, LIMITS, COST)
    targeted = [i for i, r in enumerate(workload.requests) if math.isfinite(r.ttft_slo_s)]
    lost = run.status != int(Status.FINISHED)
    met = [
        i
        for i in targeted
        if not lost[i]
        and run.first_token_s[i] - workload.requests[i].arrival_s
        <= workload.requests[i].ttft_slo_s
    ]
    if len(workload.requests) < 10 and targeted:  # of so few, all are measured
        found = measure(run).overall
        assert found["attainment"] == pytest.approx(len(met) / len(targeted))
        assert math.isinf(found["e2el.p99"]) == bool(lost.any())


def test_cancelled_requests_leave_nothing_in_the_counters_of_a_policy() -> None:
    policy = VirtualTokenCounter()
    rig = Rig(policy, max_running=1)
    rig.running("runs", tenant="busy")
    counters = policy.fairness._counters
    rig.plan()
    for wave in range(20):
        names = [f"w{wave}-{i}" for i in range(50)]
        for i, name in enumerate(names):
            rig.arrive(name, tenant=f"t{i % 3}")
        if wave % 2:
            rig.plan(seats=0)
        for name in names:
            rig.runner.finished(name, Status.ABORTED)
        rig.plan(seats=0)
        # Events reach the policy with the next plan that asks it.
        rig.arrive(f"last{wave}", tenant="busy")
        rig.plan(seats=1)
        rig.runner.finished(f"last{wave}", Status.ABORTED)
        rig.plan(seats=1)
    rig.arrive("asks", tenant="busy")
    rig.plan(seats=1)
    assert counters.queued._values.sum() == 1.0
    assert len(counters._waiting) == 1
    # The one that runs was charged for 10 prompt tokens and one of its answer, twice as dear.
    assert counters.served.at(0) == 12.0
    # Slots were used again.
    assert len(counters._booked._values) <= 256
    assert len(rig.runner._ledger.table.ids) == 256
    assert not rig.runner._planner.held_since_s


def test_a_client_that_leaves_unserved_sets_no_mark_for_later_tenants() -> None:
    policy = VirtualTokenCounter()
    rig = Rig(policy, max_running=2)
    rig.arrive("b", tenant="served much", prompt=90)
    rig.arrive("a", tenant="served little")
    rig.plan()
    rig.start("b", tokens=90)
    rig.plan()
    rig.start("a")
    rig.runner.finished("a", Status.FINISHED)
    rig.runner.finished("b", Status.FINISHED)
    rig.arrive("leaves", tenant="served much")
    rig.plan(seats=0)
    rig.runner.finished("leaves", Status.ABORTED)
    rig.arrive("new", tenant="new")
    rig.plan()
    served = policy.fairness._counters.served
    # As if the one that left had never come: lifted to the last that was served.
    assert [served.at(tenant) for tenant in range(3)] == [92.0, 12.0, 12.0]


@pytest.mark.parametrize("name", SPECS)
def test_leaving_costs_the_same_whatever_waits(name: str) -> None:
    def calls(waiting: int) -> int:
        """Most calls that one of 50 cancellations makes, of Python or C."""
        rig = Rig(PolicySpec(name=name).build(), max_running=2)
        rig.running("runs")
        for i in range(waiting):
            rig.arrive(f"r{i}", tenant=f"t{i % 7}", priority=i % 3)
        rig.plan(seats=0)
        most = count = 0

        def watch(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        for i in range(0, waiting, waiting // 50):
            count = 0
            # What is called while garbage is collected is not ours.
            gc.disable()
            sys.setprofile(watch)
            rig.runner.finished(f"r{i}", Status.ABORTED)
            sys.setprofile(None)
            gc.enable()
            most = max(most, count)
        return most

    few = calls(100)
    assert calls(10_000) <= few
    assert few < 60


def test_a_storm_of_cancellations_reaches_the_policy_as_one_event() -> None:
    told: list[int] = []

    class Listens(VirtualTokenCounter):
        def on_finished(self, rows: Requests, step: Step) -> None:
            told.append(len(rows))
            super().on_finished(rows, step)

    policy = Listens()
    rig = Rig(policy, max_running=1)
    rig.running("runs", tenant="x")
    names = [f"r{i}" for i in range(10_000)]
    for i, name in enumerate(names):
        rig.arrive(name, tenant=f"t{i % 7}")
    rig.plan(seats=0)
    for name in names:
        rig.runner.finished(name, Status.ABORTED)
    rig.arrive("next", tenant="x")
    assert rig.plan(seats=1).admit == ["next"]
    assert told == [10_000]
    assert policy.fairness._counters.queued._values.sum() == 1.0
    assert len(rig.runner._ledger.waiting) == 1
    assert len(rig.runner._ledger.table) == 2
