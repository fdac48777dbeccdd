from __future__ import annotations

import pytest

from batchpolicy.bench import BenchReport
from batchpolicy.errors import ConfigError
from batchpolicy_tuning.limits_bench import SCENARIOS, MovingLimits
from batchpolicy_tuning.workloads.source import arrival_rate


def test_workloads_are_drawn_by_number_at_one_request_a_second() -> None:
    drawn = SCENARIOS[0].workloads(3, 2, 50)
    assert arrival_rate(drawn) == pytest.approx(1.0)
    assert drawn == SCENARIOS[0].workloads(3, 2, 50)
    assert drawn != SCENARIOS[0].workloads(4, 2, 50)


def test_it_measures_no_other_engine() -> None:
    with pytest.raises(ConfigError, match="this bench measures 'light', not 'vllm'"):
        MovingLimits().choose_engine("vllm")


@pytest.mark.slow
def test_every_arm_stands_beside_the_tuned_limits() -> None:
    report: BenchReport = MovingLimits().run(lambda told: None, quick=True)
    assert [one.goal for one in report.measurements] == [">= 1.08x", ">= 1.08x", ""]
    (table,) = report.tables
    labels = [row[0] for row in table.rows]
    assert labels[0] == "vLLM's default: 2,048 tokens, 256 seats"
    assert labels[1].startswith("tuned static: ")
    assert table.rows[1][-1] == "1.000"
    assert all(len(row) == len(table.columns) for row in table.rows)
