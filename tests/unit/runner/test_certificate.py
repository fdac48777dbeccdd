from __future__ import annotations

import math
from typing import Any

import numpy as np

from batchpolicy.config import Bounds
from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, Requests, Status
from batchpolicy.runner.certificate import Certificate, Starts
from batchpolicy.runner.certificates import MAX_ENDED
from tests.support.policies import Arrival, Patched
from tests.support.rig import Rig


def latest_first(rows: Requests, step: Step) -> FloatArray:
    return rows.seq.astype(np.float64)


def nobody(rows: Requests, step: Step) -> np.ndarray:
    return np.zeros(len(rows), dtype=np.bool_)


def bounded(policy: Any = None, **bounds: Any) -> Rig:
    policy = policy or Patched.over(Arrival(), benefit=latest_first)
    return Rig(policy, parts={"bounds": Bounds(**{"max_wait_s": 3.0, "turns": "none", **bounds})})


def certificate(rig: Rig, name: str) -> Certificate:
    found = rig.runner.certificate(name)
    assert found is not None
    return found


def test_nothing_is_certified_where_no_bound_is_set() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_bypass_s=1.0)})
    rig.arrive("a")
    rig.plan()
    assert rig.runner.certificate("a") is None


def test_a_certificate_follows_a_request_from_its_wait_to_its_end() -> None:
    rig = bounded(max_wait_s=10.0)
    assert rig.runner.certificate("a") is None
    rig.arrive("a")
    rig.plan(seats=0)
    rig.plan(seats=0)
    waits = certificate(rig, "a")
    assert (waits.status, waits.since_s, waits.waited_s) == (Status.WAITING, 1.0, 1.0)
    rig.plan()
    rig.start("a")
    rig.plan()
    runs = certificate(rig, "a")
    assert (runs.status, runs.waited_s, runs.certified_wait_s) == (Status.RUNNING, 2.0, 10.0)
    assert math.isnan(runs.overdue_s)
    assert runs.certified_starts == 0
    rig.runner.finished("a", Status.FINISHED)
    assert certificate(rig, "a") == Certificate(
        request_id="a",
        status=Status.FINISHED,
        bounds=runs.bounds,
        since_s=1.0,
        waited_s=2.0,
        total_wait_s=2.0,
        overtakes=0,
        tenant_overtakes=0,
    )


def test_overtakes_count_later_arrivals_that_start_before_it_while_it_could() -> None:
    rig = bounded(max_wait_s=100.0)
    rig.arrive("a", tenant="x")
    rig.arrive("b", tenant="x")
    rig.arrive("c", tenant="y")
    rig.plan()
    rig.start("c", "b")
    assert (certificate(rig, "a").overtakes, certificate(rig, "a").tenant_overtakes) == (2, 1)
    rig.runner.ready("a", False)
    rig.arrive("d", tenant="x")
    rig.plan()
    rig.start("d")
    rig.runner.ready("a", True)
    rig.plan()
    rig.start("a")
    # What started while it could not does not count; b came before c, and started with it.
    assert (certificate(rig, "a").overtakes, certificate(rig, "a").tenant_overtakes) == (2, 1)
    assert (certificate(rig, "b").overtakes, certificate(rig, "c").overtakes) == (0, 0)
    rig.runner.finished("a", Status.FINISHED)
    assert rig.counters["most_overtakes"] == 2


def test_who_starts_before_an_overdue_request_is_counted_and_so_is_their_service() -> None:
    rig = bounded()
    rig.running("x")
    rig.arrive("a", "b", "c")
    for _ in range(3):
        rig.plan(seats=0)
        rig.decode("x")
    # They came with the plan at 2 s; the one at 5 s has no seat and does not look.
    assert rig.plan(seats=1).admit == ["a", "b", "c"]
    rig.runner.scheduled({"x": 1, "a": 10}, {"a": 0}, [])
    rig.runner.produced({"x": 1, "a": 1}, {}, 0.5)
    overdue = certificate(rig, "b")
    assert (overdue.overdue_s, overdue.by, overdue.ahead, overdue.tenants) == (
        5.0, "max_wait_s", 1, 1,
    )  # fmt: skip
    assert overdue.starts == Starts(1, 0, 0)
    rig.plan(seats=0)
    rig.runner.finished("a", Status.FINISHED)
    rig.runner.scheduled({"x": 1}, {}, [])
    rig.plan(seats=1)
    rig.start("b")
    started = certificate(rig, "b")
    # Two ran from 5 to 6 s, and one from 6 to 7 s.
    assert (started.waited_s, started.service_s, started.certified_wait_s) == (5.0, 3.0, 6.0)
    assert (started.certified_starts, started.kept) == (1, True)
    assert certificate(rig, "c").ahead == 2
    assert rig.counters["overdue"] == 3


def test_with_turns_a_certificate_counts_tenants_and_those_of_its_own_before_it() -> None:
    rig = bounded(turns="tenant")
    rig.arrive("a1", "a2", tenant="a")
    rig.arrive("b1", tenant="b")
    for _ in range(4):
        rig.plan()
    rig.arrive("c1", tenant="c")
    assert rig.plan().admit == ["a1", "c1", "b1", "a2"]
    rig.start("a1", "c1", "b1", "a2")
    second = certificate(rig, "a2")
    assert (second.ahead, second.tenants, second.certified_starts) == (1, 2, 7)
    assert second.starts == Starts(tenant=1, others=1, ordinary=1)
    assert second.kept


def test_so_many_overtakes_are_named_as_the_bound() -> None:
    rig = bounded(max_wait_s=math.inf, max_overtakes=1)
    rig.arrive("a", "b")
    rig.plan()
    rig.start("b")
    rig.plan()
    found = certificate(rig, "a")
    assert (found.by, found.overdue_s) == ("max_overtakes", 2.0)


def test_a_preempted_request_waits_anew_and_its_waits_add_up() -> None:
    rig = bounded()
    rig.arrive("a")
    for _ in range(4):
        rig.plan()
    rig.start("a")
    rig.plan()
    rig.runner.preempted(["a"])
    rig.plan()
    again = certificate(rig, "a")
    assert (again.since_s, again.waited_s, again.total_wait_s) == (5.0, 1.0, 4.0)
    assert math.isnan(again.overdue_s)


def test_an_overdue_request_that_starts_against_the_mask_is_counted() -> None:
    rig = bounded(Patched.over(Arrival(), admissible=nobody))
    rig.running("x")
    rig.arrive("a")
    for _ in range(4):
        rig.plan()
    rig.start("a")
    assert rig.counters["bound_over_mask"] == 1


def test_the_latest_of_one_id_and_only_so_many_of_the_ended_are_kept() -> None:
    rig = bounded()
    for i in range(MAX_ENDED + 1):
        rig.arrive(f"r{i}")
        rig.runner.finished(f"r{i}", Status.ABORTED)
    assert rig.runner.certificate("r0") is None
    rig.arrive("r1")
    rig.runner.finished("r1", Status.FINISHED)
    rig.arrive("more")
    rig.runner.finished("more", Status.FINISHED)
    assert certificate(rig, "r1").status == Status.FINISHED
    assert rig.runner.certificate("r2") is None


def test_nobody_passes_an_overdue_request_by_displacing() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_wait_s=3.0)}, max_running=1)
    rig.running("low", priority=5)
    rig.arrive("waits", priority=5)
    for _ in range(3):
        rig.plan(seats=0)
    rig.arrive("urgent", priority=0)
    # Overdue, it holds the place, and has nobody of a worse class to displace itself.
    plan = rig.plan(seats=0)
    assert (plan.admit, plan.preempt) == (["waits", "urgent"], [])
    rig.runner.finished("waits", Status.ABORTED)
    assert rig.plan(seats=0).preempt == ["low"]
