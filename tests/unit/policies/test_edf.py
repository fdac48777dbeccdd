from __future__ import annotations

from dataclasses import replace

import numpy as np

from batchpolicy.policies.edf import EarliestDeadlineFirst
from batchpolicy.runner.table import RequestTable
from batchpolicy.step_cost import StepCost, StepShape
from batchpolicy.testing import make_step


class MillisecondAToken(StepCost):
    def __call__(self, shape: StepShape) -> float:
        return 0.001 * shape.prefill_tokens


def table_of(**due_s: float) -> RequestTable:
    table = RequestTable()
    for name, seconds in due_s.items():
        table.add(name, arrival_s=100.0, ttft_slo_s=seconds, prompt_tokens=2000)
    return table


def test_the_nearest_deadline_has_the_greatest_benefit() -> None:
    rows = table_of(late=9.0, soon=2.0, never=np.inf).view()
    benefit = EarliestDeadlineFirst().benefit(rows, make_step(now_s=101.0))
    assert benefit.tolist() == [-8.0, -1.0, -1e12]


def test_a_deadline_that_has_passed_is_relegated() -> None:
    rows = table_of(lost=1.0, open=3.0, never=np.inf).view()
    tier = EarliestDeadlineFirst().tier(rows, make_step(now_s=102.0))
    assert tier is not None
    assert tier.tolist() == [1, 0, 0]


def test_a_deadline_nearer_than_its_prefill_takes_is_relegated() -> None:
    # 2,000 prompt tokens take 2 s.
    rows = table_of(tight=1.9, just=2.1).view()
    step = replace(make_step(now_s=100.0), cost=MillisecondAToken())
    tier = EarliestDeadlineFirst().tier(rows, step)
    assert tier is not None
    assert tier.tolist() == [1, 0]


def test_the_deadline_of_the_whole_answer_counts_when_it_comes_first() -> None:
    table = table_of(a=5.0, b=5.0)
    table.set("b", deadline_s=103.0)
    benefit = EarliestDeadlineFirst().benefit(table.view(), make_step(now_s=100.0))
    assert benefit.tolist() == [-5.0, -3.0]


def test_who_chases_lost_deadlines_has_one_tier_and_the_plain_order() -> None:
    rows = table_of(lost=1.0, open=300.0).view()
    step = make_step(now_s=200.0)
    policy = EarliestDeadlineFirst(lost="chase")
    assert policy.tier(rows, step) is None
    assert policy.benefit(rows, step).tolist() == [99.0, -200.0]
    assert policy.rank(rows, step).refuse is None


def test_a_request_that_can_meet_another_deadline_goes_by_that_one() -> None:
    table = table_of(a=1.0, b=1.0)
    table.set("b", deadline_s=150.0)
    rows, step = table.view(), make_step(now_s=120.0)
    policy = EarliestDeadlineFirst()
    assert policy.benefit(rows, step).tolist() == [-1e12, -30.0]
    tier = policy.tier(rows, step)
    assert tier is not None
    assert tier.tolist() == [1, 0]


def test_lost_requests_that_never_started_are_refused_where_the_file_says_so() -> None:
    table = table_of(lost=1.0, open=300.0, started=1.0)
    table.set("started", first_scheduled_s=110.0)
    rows = table.view()
    policy = EarliestDeadlineFirst(lost="refuse")
    refuse = policy.rank(rows, make_step(now_s=200.0, waiting=rows)).refuse
    assert refuse is not None
    assert refuse.tolist() == [True, False, False]
