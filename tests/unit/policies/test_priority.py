from __future__ import annotations

import math

import pytest

from batchpolicy.policies.priority import Priority
from batchpolicy.runner.order import best_first
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step


def queue() -> RequestTable:
    table = RequestTable()
    table.add("old and low", arrival_s=35.0, priority=3)
    table.add("middle", arrival_s=70.0, priority=1)
    table.add("new and high", arrival_s=100.0, priority=0)
    table.add("new and higher", arrival_s=100.0, priority=-2)
    return table


def ranked(policy: Priority) -> list[str]:
    rows = queue().view()
    benefit = policy.benefit(rows, make_step(now_s=100.0))
    order = best_first(benefit, policy.tier(rows, make_step()), rows.seq, len(rows))
    return rows.take(order).request_id


def test_each_ageing_time_waited_is_worth_a_level() -> None:
    rows = queue().view()
    benefit = Priority(ageing_s=10.0).benefit(rows, make_step(now_s=100.0))
    assert benefit.tolist() == [6.5 - 3, 3.0 - 1, 0.0, 2.0]


def test_waiting_raises_a_request_above_more_urgent_ones() -> None:
    assert ranked(Priority(ageing_s=10.0)) == [
        "old and low", "middle", "new and higher", "new and high",
    ]  # fmt: skip
    # Waiting 65 s is worth 2.17 levels now, one less than the three between them.
    assert ranked(Priority(ageing_s=30.0)) == [
        "new and higher", "middle", "new and high", "old and low",
    ]  # fmt: skip


def test_without_ageing_the_order_is_strict_and_the_engines_own() -> None:
    strict = Priority(ageing_s=math.inf)
    assert ranked(strict) == ["new and higher", "new and high", "middle", "old and low"]
    assert strict.native_order() == "priority"
    assert Priority().native_order() is None


@pytest.mark.parametrize("ageing_s", [0.0, -1.0, math.nan])
def test_ageing_takes_time(ageing_s: float) -> None:
    with pytest.raises(ValueError, match="ageing_s"):
        Priority(ageing_s=ageing_s)
