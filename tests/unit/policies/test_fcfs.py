from __future__ import annotations

from batchpolicy.policies.fcfs import FCFS
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step


def test_the_benefit_is_the_time_waited_whatever_else_a_request_is() -> None:
    table = RequestTable()
    table.add("early", arrival_s=90.0, priority=9)
    table.add("late", arrival_s=98.5, priority=-9, ttft_slo_s=0.1)
    assert FCFS().benefit(table.view(), make_step(now_s=100.0)).tolist() == [10.0, 1.5]


def test_it_is_the_engines_own_order() -> None:
    assert FCFS().native_order() == "fcfs"
