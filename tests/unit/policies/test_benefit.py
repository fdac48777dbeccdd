from __future__ import annotations

import numpy as np
import pytest
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policies.benefit import Benefit
from batchpolicy.policy import Step, Work
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.runner.table import RequestTable
from batchpolicy.terms import Fairness, PriorityTerm, Term, Urgency
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
        terms=(Constant(weight=6.0),),
    )
    table = queue()
    rows = table.view()
    policy.on_arrived(rows, STEP)
    policy.on_admitted(rows.take(np.array([0])), STEP)
    # Tenant 0 is 100 tokens ahead of tenant 1: a quarter of the scale.
    assert policy.benefit(rows, STEP).tolist() == [
        4 * 0.5 + 2 * 0.0 + 0.5 * 0.75 + 6 * 0.5,
        4 * 0.5 + 2 * 0.5 + 0.5 * 0.75 + 6 * 0.5,
        4 * 0.75 + 2 * 0.0 + 0.5 * 1.0 + 6 * 0.5,
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
