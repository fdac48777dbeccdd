from __future__ import annotations

import numpy as np
import pytest
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policies.benefit import Benefit
from batchpolicy.policy import Step, Work
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.runner.table import RequestTable
from batchpolicy.terms import Ageing, Fairness, PriorityTerm, Shortness, Term, Urgency
from batchpolicy.testing import make_step


class Constant(Term):
    """Scores a half, and notes which hooks it was told."""

    _told: list[str] = PrivateAttr(default_factory=list)

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        return np.full(len(requests), 0.5)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._told.append("arrived")

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        self._told.append("admitted")

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._told.append("computed")

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._told.append("preempted")

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self._told.append("finished")


def queue() -> RequestTable:
    table = RequestTable()
    table.add("plain", tenant=0, prompt_tokens=100, arrival_s=99.0)
    table.add("urgent", tenant=0, prompt_tokens=100, arrival_s=99.0, ttft_slo_s=1.5)
    table.add("important", tenant=1, prompt_tokens=100, arrival_s=99.0, priority=-10)
    return table


STEP = make_step(now_s=100.0)


def test_the_benefit_is_the_weighted_sum_of_its_terms() -> None:
    policy = Benefit(
        lambda_=0.5,
        priority=PriorityTerm(weight=4.0),
        urgency=Urgency(weight=2.0, half_life_s=0.5),
        fairness=Fairness(scale_tokens=400.0),
        shortness=Shortness(weight=8.0, scale_tokens=300.0),
        ageing=Ageing(weight=2.0, scale_s=1.0),
        terms=(Constant(weight=6.0),),
    )
    table = queue()
    rows = table.view()
    policy.on_arrived(rows, STEP)
    policy.on_admitted(rows.take(np.array([0])), STEP)
    # Tenant 0 is 100 tokens ahead of tenant 1: a quarter of the scale. Its requests came when
    # its oldest did, and all have 100 tokens to compute.
    same = 8 * 0.75 + 2 * 1.0 + 6 * 0.5
    assert policy.benefit(rows, STEP).tolist() == [
        4 * 0.5 + 2 * 0.0 + 0.5 * 0.75 + same,
        4 * 0.5 + 2 * 0.5 + 0.5 * 0.75 + same,
        4 * 0.75 + 2 * 0.0 + 0.5 * 1.0 + same,
    ]


@pytest.mark.parametrize(("lambda_", "first"), [(0.0, "important"), (1e6, "urgent")])
def test_lambda_moves_the_order_from_priority_to_fairness(lambda_: float, first: str) -> None:
    policy = Benefit(lambda_=lambda_, urgency=Urgency(weight=0.1))
    rows = queue().view()
    policy.on_arrived(rows, STEP)
    policy.on_admitted(rows.take(np.array([2])), STEP)
    assert rows.request_id[policy.benefit(rows, STEP).argmax()] == first


def test_a_term_without_weight_costs_nothing_and_is_still_told() -> None:
    class Unasked(Constant):
        @override
        def score(self, requests: Requests, step: Step) -> FloatArray:
            raise AssertionError("asked")

    term = Unasked(weight=0.0)
    policy = Benefit(terms=(term,))
    rows = queue().view()
    policy.benefit(rows, STEP)
    policy.on_arrived(rows, STEP)
    policy.on_admitted(rows, STEP)
    policy.on_computed(rows, Work(rows.prompt_tokens, rows.output_tokens, 1, 0.1), STEP)
    policy.on_preempted(rows, STEP)
    policy.on_finished(rows, STEP)
    assert term._told == ["arrived", "admitted", "computed", "preempted", "finished"]


def test_shares_come_from_the_fairness_term() -> None:
    policy = Benefit(fairness=Fairness(weights={"a": 2.0}))
    assert policy.tenant_weights() == {"a": 2.0}


def test_lambda_is_written_lambda_and_is_not_negative() -> None:
    assert Benefit.model_validate({"lambda": 2.0}).lambda_ == 2.0
    with pytest.raises(ValueError, match="lambda"):
        Benefit(lambda_=-0.1)


def test_two_policies_share_no_accounts() -> None:
    one, two = Benefit(), Benefit()
    rows = queue().view()
    for policy in (one, two):
        policy.on_arrived(rows, STEP)
    before = two.benefit(rows, STEP).tolist()
    one.on_admitted(rows.take(np.array([0, 1])), STEP)
    assert two.benefit(rows, STEP).tolist() == before
    assert one.benefit(rows, STEP).tolist() != before


def test_lost_requests_are_refused_where_a_term_says_so_and_take_nobodys_place() -> None:
    table = queue()
    table.add("lost", tenant=2, arrival_s=90.0, ttft_slo_s=1.0, priority=-100)
    rows = table.view()
    step = make_step(now_s=100.0, waiting=rows, window=1)
    assert Benefit().rank(rows, step).refuse is None
    policy = Benefit(urgency=Urgency(lost="refuse"))
    policy.on_arrived(rows, step)
    ranking = policy.rank(rows, step)
    assert ranking.refuse is not None
    assert ranking.admissible is not None
    assert ranking.refuse.tolist() == [False, False, False, True]
    # The one row of the window is the best of the others.
    assert ranking.admissible.tolist() == [False, True, False, False]


def test_a_further_term_may_refuse_as_well() -> None:
    table = queue()
    table.add("lost", arrival_s=90.0, ttft_slo_s=1.0)
    rows = table.view()
    policy = Benefit(terms=(Urgency(lost="refuse"),))
    ranking = policy.rank(rows, make_step(now_s=100.0, waiting=rows))
    assert ranking.refuse is not None
    assert ranking.refuse.tolist() == [False, False, False, True]


def test_the_corridor_holds_a_tenant_that_leads_by_too_much_among_its_own_class() -> None:
    table = RequestTable()
    for name, tenant, priority in [
        ("a", 0, 0), ("a batch", 0, 5), ("b", 1, 0), ("b batch", 1, 5), ("c batch", 2, 5),
    ]:  # fmt: skip
        table.add(name, tenant=tenant, priority=priority, prompt_tokens=100)
    rows = table.view()
    step = make_step(waiting=rows)
    policy = Benefit(corridor_tokens=250.0)
    policy.on_arrived(rows, step)
    # Tenants 0, 1 and 2 were served 300, 200 and 0.
    policy.fairness._counters.charge(rows.take(np.array([0, 2])), np.array([300.0, 200.0]))
    ranking = policy.rank(rows, step)
    assert ranking.admissible is not None
    # In the better class a leads by 100; in the worse it leads c by 300, which is too much, and
    # so does b after its other request.
    assert ranking.admissible.tolist() == [True, False, True, False, True]


def test_the_corridor_does_nothing_for_a_single_tenant() -> None:
    table = RequestTable()
    for name in "abc":
        table.add(name, tenant=3, prompt_tokens=10**6)
    rows = table.view()
    assert Benefit().rank(rows, make_step(waiting=rows)).admissible is None


def test_classes_may_lie_far_apart() -> None:
    table = RequestTable()
    for name, tenant, priority in [("a", 0, 2**31 - 1), ("b", 1, -(2**31)), ("c", 2, 7)]:
        table.add(name, tenant=tenant, priority=priority)
    rows = table.view()
    step = make_step(waiting=rows)
    policy = Benefit(corridor_tokens=50.0)
    policy.on_arrived(rows, step)
    # a leads both by 60, b leads c.
    policy.fairness._counters.charge(rows.take(np.array([0, 1])), np.array([60.0, 60.0]))
    ranking = policy.rank(rows, step)
    assert ranking.admissible is not None
    assert ranking.admissible.tolist() == [False, True, True]
