"""Counters of backlogged tenants stay in the corridor, whatever order is inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.config import Memory
from batchpolicy.counters import TokenCounters
from batchpolicy.policies.benefit import Benefit
from batchpolicy.policies.shortest_first import ShortestFirst
from batchpolicy.policies.virtual_token_counter import VirtualTokenCounter
from batchpolicy.policy import Policy, Ranking, Step
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.terms import Fairness
from batchpolicy.wrappers.corridor import Corridor
from batchpolicy.wrappers.tiered import Tiered
from tests.support.mini_engine import Job, MiniEngine

TENANTS = "abc"
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}


class _Order(Policy):
    """Orders that fairness has to stand; the counters are its own, charged like the corridor's."""

    _fairness: Fairness = PrivateAttr(default_factory=Fairness)

    on_arrived = VirtualTokenCounter.on_arrived  # type: ignore[assignment]
    on_admitted = VirtualTokenCounter.on_admitted  # type: ignore[assignment]
    on_computed = VirtualTokenCounter.on_computed  # type: ignore[assignment]
    on_preempted = VirtualTokenCounter.on_preempted  # type: ignore[assignment]
    on_finished = VirtualTokenCounter.on_finished  # type: ignore[assignment]

    @property
    def fairness(self) -> Fairness:
        return self._fairness


class RichGetRicher(_Order):
    """The tenant that was served most comes first."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return self.fairness.served(requests)


class LatestFirst(_Order):
    """The last to come is the first to go."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.seq.astype(np.float64)


class LargestFirst(_Order):
    """What is charged most comes first."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.prompt_tokens.astype(np.float64)


class OneTenantFirst(_Order):
    """One tenant is never made to wait for another."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -requests.tenant.astype(np.float64)


class AnyOrder(_Order):
    """Another order in each step."""

    seed: int = 0

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return np.random.default_rng([self.seed, step.index]).random(100)[requests.seq]


ORDERS = [RichGetRicher, LatestFirst, LargestFirst, OneTenantFirst, AnyOrder]


class Watched(Policy):
    """Notes the gap between the counters of tenants that wait, as often as it is asked."""

    _gaps: list[float] = PrivateAttr(default_factory=lambda: [0.0])
    _served: list[dict[int, float]] = PrivateAttr(default_factory=list)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        fairness: Fairness = self.fairness  # type: ignore[attr-defined]
        # Who waits for a first start has waited without a break.
        fresh = waiting.take(waiting.preemptions == 0)
        self._gaps.append(float(np.ptp(fairness.served(fresh))) if len(fresh) else 0.0)
        return super().rank(waiting, step)


class WatchedCorridor(Watched, Corridor):
    pass


class WatchedBenefit(Watched, Benefit):
    _order: Policy = PrivateAttr(default_factory=AnyOrder)

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return self._order.benefit(requests, step)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        super().on_arrived(rows, step)
        self._order.on_arrived(rows, step)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        super().on_admitted(rows, step)
        self._order.on_admitted(rows, step)


def wrapped(order: Policy, tokens: float) -> Watched:
    return WatchedCorridor(inner=order, tokens=tokens)


def in_benefit(order: Policy, tokens: float) -> Watched:
    policy = WatchedBenefit(corridor_tokens=tokens)
    policy._order = order
    return policy


HOSTS = [wrapped, in_benefit]
Host = Callable[[Policy, float], Watched]


@st.composite
def backlogs(
    draw: st.DrawFn, *, predicted: bool, arrives: tuple[int, ...] = (0, 0, 0, 5, 9)
) -> list[Job]:
    jobs = []
    for i in range(draw(st.integers(3, 24))):
        outputs = draw(st.integers(1, 12))
        tenant = TENANTS[draw(st.integers(0, 2))]
        jobs.append(
            Job(
                f"r{i}",
                prompt=draw(st.integers(1, 20)),
                outputs=outputs,
                predicted=float(outputs) if predicted else float("nan"),
                tenant=tenant,
                weight=WEIGHTS[tenant],
                arrives=draw(st.sampled_from(arrives)),
            )
        )
    return jobs


def served(policy: Policy, jobs: list[Job], seats: int, **engine: Any) -> MiniEngine:
    given = {"budget": 200, "blocks": 1000, **engine}
    mini = MiniEngine(policy, seats=seats, preempt="never", **given)
    mini.run(jobs)
    return mini


def largest_gap(policy: Watched, jobs: list[Job], seats: int, **engine: Any) -> float:
    mini = served(policy, jobs, seats, **engine)
    return max(mini.runner.policy._gaps)  # type: ignore[attr-defined]


def largest_charge(jobs: list[Job]) -> float:
    return max((job.prompt + 2.0 * job.outputs) / job.weight for job in jobs)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("order", ORDERS)
@given(st.data(), st.integers(1, 4), st.sampled_from([1.0, 15.0, 60.0]))
@settings(max_examples=30, deadline=None)
def test_the_gap_is_at_most_the_corridor_and_the_largest_charge_where_output_is_predicted(
    host: Host, order: type[_Order], data: st.DataObject, seats: int, corridor: float
) -> None:
    jobs = data.draw(backlogs(predicted=True))
    gap = largest_gap(host(order(), corridor), jobs, seats)
    assert gap <= corridor + largest_charge(jobs) + 1e-9


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("order", ORDERS)
@given(st.data(), st.integers(1, 4), st.sampled_from([1.0, 15.0, 60.0]))
@settings(max_examples=30, deadline=None)
def test_without_prediction_what_runs_of_a_tenant_may_put_out_comes_on_top(
    host: Host, order: type[_Order], data: st.DataObject, seats: int, corridor: float
) -> None:
    jobs = data.draw(backlogs(predicted=False))
    prompt = max(job.prompt / job.weight for job in jobs)
    outputs = max(2.0 * job.outputs / job.weight for job in jobs)
    gap = largest_gap(host(order(), corridor), jobs, seats)
    assert gap <= corridor + prompt + seats * outputs + 1e-9


SCARCE: dict[str, Any] = {"blocks": 10, "memory": Memory(look_ahead=False)}
"""KV for 40 tokens, the largest answer taking 32; it runs out, and requests are preempted."""


@pytest.mark.parametrize("order", ORDERS)
@given(st.data(), st.integers(2, 4), st.sampled_from([1.0, 15.0]))
@settings(max_examples=30, deadline=None)
def test_without_prediction_all_that_kv_can_hold_is_the_bound_of_virtual_token_counters(
    order: type[_Order], data: st.DataObject, seats: int, corridor: float
) -> None:
    jobs = data.draw(backlogs(predicted=False, arrives=(0,)))
    charge = max(max(job.prompt, 2.0 * 40) / job.weight for job in jobs)
    gap = largest_gap(wrapped(order(), corridor), jobs, seats, **SCARCE)
    assert gap <= corridor + charge + 1e-9


@pytest.mark.parametrize("order", ORDERS)
@given(st.data(), st.integers(2, 4), st.sampled_from([1.0, 15.0]))
@settings(max_examples=30, deadline=None)
def test_it_holds_where_prompts_go_in_parts_and_kv_runs_out(
    order: type[_Order], data: st.DataObject, seats: int, corridor: float
) -> None:
    jobs = data.draw(backlogs(predicted=True, arrives=(0,)))
    engine = {"budget": 12, "chunk": 4, **SCARCE}
    gap = largest_gap(wrapped(order(), corridor), jobs, seats, **engine)
    assert gap <= corridor + largest_charge(jobs) + 1e-9


@pytest.mark.parametrize("order", ORDERS)
@given(st.data(), st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_each_request_is_charged_once_however_often_it_is_preempted(
    order: type[_Order], data: st.DataObject, seats: int
) -> None:
    jobs = data.draw(backlogs(predicted=True, arrives=(0,)))
    for job in jobs:
        # Wrong by up to the whole answer, either way.
        job.predicted = float(data.draw(st.integers(1, 12)))
    # No tenant is lifted when all come at once.
    mini = served(wrapped(order(), 15.0), jobs, seats, **SCARCE)
    counted: dict[str, float] = {}
    for job in jobs:
        charge = (job.prompt + 2.0 * job.outputs) / job.weight
        counted[job.tenant] = counted.get(job.tenant, 0.0) + charge
    tenants = list(dict.fromkeys(job.tenant for job in jobs))
    fairness: Fairness = mini.runner.policy.fairness  # type: ignore[attr-defined]
    runner = mini.runner
    # The last ends are told with the next plan.
    runner.arrived("last", Job("last", prompt=1, outputs=1).facts())
    runner.begin(runner.tick())
    runner.plan(10, 1)
    for code, tenant in enumerate(tenants):
        assert fairness._counters.served.at(code) == pytest.approx(counted[tenant])


def test_preemption_does_happen_in_these_tests() -> None:
    jobs = [
        Job(f"r{i}", prompt=8, outputs=12, predicted=12.0, tenant="ab"[i % 2]) for i in range(8)
    ]
    mini = served(wrapped(LatestFirst(), 15.0), jobs, 4, **SCARCE)
    assert mini.runner.counters["preempted"] > 0


def alternating(n: int, **facts: Any) -> list[Job]:
    return [
        Job(f"r{i}", prompt=20, outputs=4, predicted=4.0, tenant="ab"[i % 2], **facts)
        for i in range(n)
    ]


@pytest.mark.parametrize("host", HOSTS)
def test_without_a_corridor_the_same_order_leaves_it(host: Host) -> None:
    assert largest_gap(host(RichGetRicher(), 15.0), alternating(20), 1) <= 15.0 + 28.0
    assert largest_gap(host(RichGetRicher(), 1e9), alternating(20), 1) > 15.0 + 28.0


class _NeverLifted(TokenCounters):
    """Counters in which an idle tenant saves up credit."""

    @override
    def floor(self) -> float:
        return 0.0


def test_without_a_lift_a_tenant_that_comes_late_is_far_behind() -> None:
    def gap(counters: TokenCounters) -> float:
        policy = wrapped(LatestFirst(), 15.0)
        policy.fairness._counters = counters  # type: ignore[attr-defined]
        jobs = [
            Job(f"a{i}", prompt=20, outputs=4, predicted=4.0, tenant="a") for i in range(12)
        ] + [Job("b", prompt=20, outputs=4, predicted=4.0, tenant="b", arrives=20)]
        return largest_gap(policy, jobs, 1)

    assert gap(TokenCounters()) <= 15.0 + 28.0
    assert gap(_NeverLifted()) > 15.0 + 28.0


def by_class(*, urgent: str, other: str) -> list[Job]:
    """Two tenants in each of two classes; ``urgent`` and ``other`` name those of both."""
    jobs = []
    for i in range(10):
        for tenant in urgent + other:
            priority = 0 if tenant in urgent else 1
            jobs.append(
                Job(
                    f"{tenant}{i}", prompt=20, outputs=4, predicted=4.0, tenant=tenant,
                    priority=priority,
                )
            )  # fmt: skip
    return jobs


def test_a_corridor_outside_holds_fairness_over_class() -> None:
    jobs = by_class(urgent="a", other="b")
    outside = WatchedCorridor(tokens=15.0, inner=Tiered(inner=LatestFirst()))
    assert largest_gap(outside, jobs, 1) <= 15.0 + 28.0
    # Both classes have started before the first is done.
    order = served(outside, by_class(urgent="a", other="b"), 1).order
    assert {i[0] for i in order[:4]} == {"a", "b"}


def test_a_corridor_inside_holds_in_each_class_and_the_better_class_goes_first() -> None:
    inside = WatchedCorridor(tokens=15.0, inner=RichGetRicher())
    policy = Tiered(inner=inside)
    mini = served(policy, by_class(urgent="ab", other="cd"), 1)
    order = [request_id[0] for request_id in mini.order]
    assert set(order[:20]) == {"a", "b"}
    assert set(order[20:]) == {"c", "d"}
    watched: Any = mini.runner.policy
    assert max(watched.inner._gaps) <= 15.0 + 28.0
    # Without a corridor, one tenant of each class would go before the other.
    free = Tiered(inner=WatchedCorridor(tokens=float("inf"), inner=RichGetRicher()))
    watched = served(free, by_class(urgent="ab", other="cd"), 1).runner.policy
    assert max(watched.inner._gaps) > 15.0 + 28.0


def test_what_the_order_inside_holds_back_holds_nobody_else_back() -> None:
    class HoldsTheFirst(ShortestFirst):
        def admissible(self, waiting: Requests, step: Step) -> Any:
            others = len(step.running) > 0 or len(waiting) > 1
            return (waiting.tenant != 0) | np.full(len(waiting), not others)

    policy = wrapped(HoldsTheFirst(), 15.0)
    mini = served(policy, alternating(20), 1)
    # All of b, though a is behind by 280.
    assert [i in {f"r{n}" for n in range(1, 20, 2)} for i in mini.order[:10]] == [True] * 10
