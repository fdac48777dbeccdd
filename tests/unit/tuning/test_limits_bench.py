from __future__ import annotations

import pytest

from batchpolicy.bench import BenchReport
from batchpolicy.errors import ConfigError
from batchpolicy_tuning.limits_bench import SCENARIOS, MovingLimits, median_interval
from batchpolicy_tuning.workloads.source import arrival_rate


def test_workloads_are_drawn_by_number_at_one_request_a_second() -> None:
    drawn = SCENARIOS[0].workloads(3, 2, 50)
    assert arrival_rate(drawn) == pytest.approx(1.0)
    assert drawn == SCENARIOS[0].workloads(3, 2, 50)
    assert drawn != SCENARIOS[0].workloads(4, 2, 50)


def test_it_measures_no_other_engine() -> None:
    with pytest.raises(ConfigError, match="this bench measures 'light', not 'vllm'"):
        MovingLimits().choose_engine("vllm")


def test_the_interval_of_a_median_leaves_out_so_many_at_either_end() -> None:
    # Of 16 throws, at most 3 are heads with 1.06%, at most 4 with 3.84%: so 4th to 13th.
    assert median_interval([float(i) for i in range(1, 17)]) == (4.0, 13.0)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


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
