from __future__ import annotations

from dataclasses import replace

import pytest

from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload
from batchpolicy_tuning.saturation import Saturate, backlog, sustained_rate
from batchpolicy_tuning.workloads.source import TraceSlices, arrival_rate
from tests.support.serial_engine import LIMITS, NoCost, SerialEngine, request


def _trace(n: int, *, tokens: int = 500, gap_s: float = 3.0) -> Workload:
    return Workload("t", tuple(request(f"r{i}", i * gap_s, tokens) for i in range(n)))


def test_a_server_that_takes_half_a_second_sustains_two_requests_per_second() -> None:
    source = TraceSlices(_trace(40), slices=4)
    work = backlog([source.replication(k, seed=0) for k in range(4)], seats=1)
    found = Saturate(work, LIMITS, NoCost(), seed=0)(SerialEngine())
    assert found.requests_per_s == pytest.approx(2.0)
    assert found.engine_version == "serial 1"


def test_a_backlog_takes_replications_from_all_over_until_the_seats_fill_eight_times() -> None:
    parts = [_trace(10, tokens=100 + k) for k in range(8)]
    work = backlog(parts, seats=3).requests
    assert {r.prompt_tokens for r in work} == {100, 104, 102}
    assert {r.arrival_s for r in work} == {0.0}
    assert len({r.id for r in work}) == 30


def test_who_follows_another_is_there_at_once_in_a_backlog() -> None:
    first, second = _trace(2).requests
    later = replace(second, arrival_after=first.id, gap_s=9.0, ready_at_s=20.0)
    work = backlog([Workload("t", (first, later))] * 2, seats=8).requests
    assert [r.id for r in work] == ["0/r0", "0/r1", "1/r0", "1/r1"]
    assert {(r.arrival_s, r.arrival_after, r.gap_s) for r in work} == {(0.0, "", 0.0)}
    assert all(r.ready_at_s < 0.0 for r in work)


def test_the_drain_counts_only_as_far_as_the_queue_lasted() -> None:
    # Two seats: a and b run 0 to 1 and 0 to 4, c 1 to 2, d from 2. At 2 s the queue is
    # empty; by then a, c, half of b and nothing of d are done.
    run = SerialEngine().replay(_trace(4, gap_s=0.0), None, LIMITS, NoCost())
    run.first_scheduled_s[:] = [0.0, 0.0, 1.0, 2.0]
    run.finished_s[:] = [1.0, 4.0, 2.0, 3.0]
    assert sustained_rate(run) == pytest.approx(2.5 / 2.0)


def test_a_backlog_that_starts_at_once_sets_no_load() -> None:
    run = SerialEngine().replay(_trace(2), None, LIMITS, NoCost())
    run = replace(run, first_scheduled_s=run.first_scheduled_s * 0.0)
    with pytest.raises(WorkloadError, match="start in the first step"):
        sustained_rate(run)


def test_the_rate_of_arrivals_is_the_mean_over_all_slices() -> None:
    slices = [_trace(3, gap_s=1.0), _trace(2, gap_s=6.0)]
    assert arrival_rate(slices) == pytest.approx(3 / 8)
    with pytest.raises(WorkloadError, match="one instant"):
        arrival_rate([_trace(3, gap_s=0.0)])


def test_slices_are_disjoint_consecutive_and_start_at_zero() -> None:
    source = TraceSlices(_trace(11), slices=3)
    parts = [source.replication(k, seed=0) for k in range(3)]
    assert [[r.id for r in part.requests] for part in parts] == [
        ["r0", "r1", "r2"],
        ["r3", "r4", "r5"],
        ["r6", "r7", "r8"],
    ]
    assert [[r.arrival_s for r in part.requests] for part in parts] == [[0.0, 3.0, 6.0]] * 3


def test_a_trace_too_short_for_its_slices_says_how_many_it_can_give() -> None:
    with pytest.raises(WorkloadError, match=r"11 requests are too few for 6 pairs.*--pairs 5"):
        TraceSlices(_trace(11), slices=6)


def test_a_trace_too_short_for_any_pairs_is_not_told_to_take_as_many() -> None:
    with pytest.raises(WorkloadError, match=r"1 request is too few for 2 pairs.*longer trace\.$"):
        TraceSlices(_trace(1), slices=2)
