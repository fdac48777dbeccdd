"""A policy that holds all requests while nothing runs: the clock goes where it says."""

from __future__ import annotations

import math
from typing import Any

from batchpolicy.config import Bounds, PolicyConfig, PolicySpec, Queue
from batchpolicy.requests import Status
from tests.unit.sim.light import Served, request


def gate(max_hold_s: float = 10.0, least: int = 3, **parts: Any) -> PolicyConfig:
    params = {"min_waiting": least, "max_hold_s": max_hold_s, "hold_idle": True}
    return PolicyConfig(policy=PolicySpec(name="batch-forming", params=params), **parts)


def test_the_clock_goes_to_the_end_of_the_hold() -> None:
    served = Served(request("a", 8, 1, at=2.0), config=gate())
    assert served.of("first_scheduled_s") == {"a": 12.0}
    # One step that holds it, the one that serves it, and one that tells of its end.
    assert served.plans[:2] == [{}, {"a": 8}]
    assert "forced" not in served.run.counters


def test_arrivals_come_before_it_and_open_the_gate() -> None:
    requests = [request(name, 8, 1, at=at) for name, at in (("a", 2.0), ("b", 3.0), ("c", 5.0))]
    served = Served(*requests, config=gate())
    assert set(served.of("first_scheduled_s").values()) == {5.0}


def test_requests_expire_while_they_are_held() -> None:
    served = Served(
        request("a", 8, 1, at=2.0),
        request("b", 8, 1, at=3.0, queue_ttl_s=4.0),
        config=gate(),
    )
    assert served.of("status") == {"a": int(Status.FINISHED), "b": int(Status.EXPIRED)}
    assert served.of("finished_s")["b"] == 7.0
    assert served.of("first_scheduled_s")["a"] == 12.0


def test_a_limit_on_the_queue_of_the_file_ends_requests_that_are_held() -> None:
    served = Served(request("a", 8, 1, at=2.0), config=gate(math.pi * 1e6, queue=Queue(ttl_s=5.0)))
    assert served.of("status") == {"a": int(Status.EXPIRED)}
    assert served.of("finished_s") == {"a": 7.0}


def test_who_is_overdue_starts_although_it_is_held() -> None:
    served = Served(request("a", 8, 1, at=0.1), config=gate(bounds=Bounds(max_wait_s=0.7)))
    assert served.of("first_scheduled_s") == {"a": 0.1 + 0.7}


def test_blocked_requests_expire_where_nothing_else_happens() -> None:
    served = Served(
        request("a", 8, 1, at=2.0, ready_at_s=100.0, queue_ttl_s=3.0),
        config=PolicyConfig(policy=PolicySpec(name="benefit")),
    )
    assert served.of("finished_s") == {"a": 5.0}


def test_the_gate_forms_a_batch_while_others_decode() -> None:
    """A step lasts a second: with one that decodes, three prompts start in one step."""
    late = [request(f"r{i}", 8, 2, at=10.0 + i) for i in range(3)]
    config = PolicyConfig(
        policy=PolicySpec(name="batch-forming", params={"min_waiting": 3, "max_hold_s": 60.0})
    )
    served = Served(request("old", 8, 30), *late, config=config)
    assert set(served.of("first_scheduled_s").values()) == {0.0, 12.0}
