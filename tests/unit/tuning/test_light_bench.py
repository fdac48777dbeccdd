"""The bench of the light engine ends, and says what its figures are."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.bench import BenchReport
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.workload import Workload
from batchpolicy_tuning.light_bench import LightSpeed
from batchpolicy_tuning.long_run import long_run, repeated
from tests.support.serial_engine import request


def test_a_repeated_workload_goes_on_at_the_same_rate() -> None:
    workload = Workload("t", tuple(request(f"r{i}", 2.0 * i, 500) for i in range(3)))
    again = repeated(workload, 7).requests
    assert [r.arrival_s for r in again] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert [r.id for r in again] == ["0", "1", "2", "3", "4", "5", "6"]


def test_a_long_run_is_measured_in_a_process_of_its_own() -> None:
    run = long_run("light", "chat-and-batch", 300, 1.0)
    assert run.requests == run.finished == 300
    assert run.steps > 300
    assert 20 < run.before_mb <= run.peak_mb < 300


def test_a_long_run_that_fails_says_why() -> None:
    with pytest.raises(BatchPolicyError, match=r"the replay of 300 requests failed: .*no-such"):
        long_run("light", "no-such-workload", 300, 1.0)


def test_it_measures_no_other_engine() -> None:
    with pytest.raises(ConfigError, match="this bench measures 'light', not 'vllm'"):
        LightSpeed().choose_engine("vllm")


@pytest.mark.slow
def test_all_its_figures_come_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Without a trace beside it, on what is embedded.
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    report: BenchReport = LightSpeed().run(told.append, quick=True)
    names = [one.what for one in report.measurements]
    assert names[:3] == [
        "speed under fcfs", "speed under benefit", "peak memory at 5,000 requests"
    ]  # fmt: skip
    by_name = {one.what: one for one in report.measurements}
    assert by_name["Little's law: mean number in the engine"].met
    idle = "work conservation: steps with an empty seat while somebody waits"
    assert by_name[idle].met
    notes = " ".join(report.notes)
    assert "azure_2023_conv.csv.gz is not in data/traces" in notes
    assert "Neither was run here" in notes
    assert told[0] == "finding what fcfs sustains"
