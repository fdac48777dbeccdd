from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from batchpolicy.engine import Run
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.measured import measured_rows
from batchpolicy_tuning.metrics import measure, percentile
from tests.support.serial_engine import LIMITS, NoCost, SerialEngine, request


def _served(*requests: WorkloadRequest) -> Run:
    return SerialEngine().replay(Workload("w", requests), None, LIMITS, NoCost())


def test_times_are_taken_from_arrival_and_tpot_from_the_first_token() -> None:
    # Serial, 1 ms a token: a runs 0 to 0.2, its first token at 0.1; b waits for it.
    run = _served(
        request("a", 0.0, 100, output_tokens=101), request("b", 0.05, 300, output_tokens=1)
    )
    found = measure(run).overall
    assert found["ttft.p50"] == pytest.approx((0.1 + 0.45) / 2)
    assert found["tpot.p50"] == pytest.approx(0.001)
    assert found["e2el.p50"] == pytest.approx((0.2 + 0.45) / 2)
    assert found["queue.p50"] == pytest.approx(0.15 / 2)
    assert found["queue.max"] == pytest.approx(0.15)
    assert found["throughput"] == pytest.approx(102 / 0.5)


def test_classes_are_measured_by_themselves() -> None:
    run = _served(
        request("a", 0.0, 100, request_class="chat", priority=0),
        request("b", 0.0, 100, request_class="batch", priority=9),
    )
    found = measure(run)
    assert list(found.classes) == ["chat", "batch"]
    assert found.classes["chat"]["ttft.p99"] == pytest.approx(0.1)
    assert found.classes["batch"]["ttft.p99"] == pytest.approx(0.2)
    assert math.isnan(found.scope("other").get("ttft.p99", math.nan))


def test_attainment_is_over_all_requests_with_targets() -> None:
    run = _served(
        request("met", 0.0, 100, ttft_slo_s=0.1),
        request("late", 0.0, 100, ttft_slo_s=0.19),
        request("slow", 0.0, 100, tpot_slo_s=0.0009, output_tokens=11),
        request("one token has no gap", 0.0, 100, tpot_slo_s=0.0009),
        request("no target", 0.0, 100),
    )
    assert measure(run).overall["attainment"] == 2 / 4


def test_a_deadline_is_a_target() -> None:
    run = _served(
        request("in time", 0.0, 100, deadline_s=0.1),
        request("late", 0.0, 100, deadline_s=0.19),
        request("no target", 0.0, 100),
    )
    assert measure(run).overall["attainment"] == 1 / 2
    never = replace(run, status=np.full(3, Status.REFUSED), finished_s=np.full(3, math.nan))
    assert measure(never).overall["attainment"] == 0.0


def test_a_request_that_failed_missed_its_targets_and_never_had_a_first_token() -> None:
    run = _served(*(request(f"r{i}", 0.0, 1, ttft_slo_s=9.0) for i in range(4)))
    first, ended = run.first_token_s.copy(), run.finished_s.copy()
    first[3] = ended[3] = math.nan
    started = first - 0.001
    status = run.status.copy()
    status[3] = Status.REFUSED
    refused = replace(
        run, status=status, first_scheduled_s=started, first_token_s=first, finished_s=ended
    )
    found = measure(refused).overall
    assert found["attainment"] == 3 / 4
    assert found["ttft.p99"] == math.inf
    assert found["ttft.p50"] == pytest.approx(0.0025)
    assert found["queue.max"] == run.end_s


def test_who_cancelled_before_the_first_token_is_left_out_of_the_percentiles() -> None:
    run = _served(*(request(f"r{i}", 0.0, 1) for i in range(4)))
    first = run.first_token_s.copy()
    first[3] = math.nan
    status = run.status.copy()
    status[3] = Status.ABORTED
    found = measure(replace(run, status=status, first_token_s=first)).overall
    assert found["ttft.p99"] == pytest.approx(0.002 + 0.98 * 0.001)
    assert math.isnan(found["attainment"])


def test_preemptions_and_recomputed_tokens_are_summed() -> None:
    run = _served(request("a", 0.0, 5), request("b", 0.0, 5))
    run = replace(run, preemptions=np.array([1, 2]), recomputed_tokens=np.array([10, 30]))
    found = measure(run).overall
    assert (found["preemptions"], found["recompute"]) == (3.0, 40.0)


def test_percentiles_lie_between_neighbours_and_beside_an_endless_value_are_endless() -> None:
    assert percentile(np.array([4.0, 1.0, 3.0, 2.0]), 50) == 2.5
    assert percentile(np.array([5.0]), 99) == 5.0
    assert percentile(np.array([1.0, np.nan, 3.0]), 50) == 2.0
    assert percentile(np.array([1.0, 2.0, np.inf]), 50) == 2.0
    assert percentile(np.array([1.0, 2.0, np.inf]), 51) == math.inf
    assert math.isnan(percentile(np.array([np.nan]), 50))


def _ended(run: Run, row: int, status: Status) -> Run:
    """The run with a request that never started, ended in this way."""
    columns = {
        name: getattr(run, name).copy()
        for name in ("status", "first_scheduled_s", "first_token_s", "finished_s", "output_tokens")
    }
    columns["status"][row] = status
    for name in ("first_scheduled_s", "first_token_s", "finished_s"):
        columns[name][row] = math.nan
    columns["output_tokens"][row] = 0
    return replace(run, **columns)


@pytest.mark.parametrize(
    "status", [Status.REFUSED, Status.EXPIRED, Status.WAITING, Status.RUNNING]
)
def test_a_request_without_service_stays_in_the_denominator_of_every_metric(
    status: Status,
) -> None:
    run = _served(
        *(
            request(f"r{i}", 0.0, 100, output_tokens=11, tenant="ab"[i % 2], ttft_slo_s=9.0)
            for i in range(4)
        )
    )
    before, after = measure(run).overall, measure(_ended(run, 3, status)).overall
    for key in ("ttft", "tpot", "e2el", "queue"):
        assert math.isfinite(before[f"{key}.p99"])
        assert after[f"{key}.p99"] == math.inf
        # The median of 4 values lies between the second and the third, as before.
        assert after[f"{key}.p50"] == before[f"{key}.p50"]
    assert after["queue.max"] == run.end_s
    assert (before["attainment"], after["attainment"]) == (1.0, 0.75)
    assert after["throughput"] == pytest.approx(before["throughput"] * 33 / 44)


def test_who_cancelled_counts_in_attainment_alone() -> None:
    run = _served(
        *(request(f"r{i}", 0.0, 100, output_tokens=11, ttft_slo_s=9.0) for i in range(4))
    )
    found = measure(_ended(run, 3, Status.ABORTED)).overall
    assert found["attainment"] == 0.75
    for key in ("ttft", "tpot", "e2el", "queue"):
        assert math.isfinite(found[f"{key}.p99"])


def test_a_request_of_one_token_has_no_tpot_however_it_ends() -> None:
    run = _served(request("a", 0.0, 100, output_tokens=11), request("b", 0.0, 100))
    assert math.isfinite(measure(_ended(run, 1, Status.REFUSED)).overall["tpot.p99"])


def test_the_first_and_last_tenth_are_served_and_not_measured() -> None:
    # Serial: request i of 20 waits 0.1 * i s; measured are those from 2 to 17.
    run = _served(*(request(f"r{i}", 0.0, 100, ttft_slo_s=1.05) for i in range(20)))
    run = replace(run, preemptions=np.arange(20), recomputed_tokens=np.arange(20))
    found = measure(run).overall
    assert found["queue.max"] == pytest.approx(1.7)
    assert found["queue.p50"] == pytest.approx((0.9 + 1.0) / 2)
    assert found["attainment"] == 8 / 16
    assert found["preemptions"] == found["recompute"] == sum(range(2, 18))
    assert found["throughput"] == pytest.approx(20 / 2.0)


@pytest.mark.parametrize(("n", "rows"), [(1, (0, 1)), (9, (0, 9)), (10, (1, 9)), (400, (40, 360))])
def test_of_fewer_than_ten_requests_all_are_measured(n: int, rows: tuple[int, int]) -> None:
    found = measured_rows(n)
    assert (found.start, found.stop) == rows


def test_a_class_that_only_comes_at_the_ends_has_no_values() -> None:
    run = _served(
        *(request(f"r{i}", 0.0, 100, request_class="a" if 0 < i < 9 else "b") for i in range(10))
    )
    assert list(measure(run).classes) == ["a"]
