from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload, WorkloadRequest


def request(id: str = "a", arrival_s: float = 0.0, **more: Any) -> WorkloadRequest:
    facts = {"prompt_tokens": 10, "output_tokens": 5, "max_tokens": 8, **more}
    return WorkloadRequest(id=id, arrival_s=arrival_s, **facts)


def faults(*requests: WorkloadRequest) -> list[str]:
    with pytest.raises(WorkloadError) as caught:
        Workload("trace", requests)
    first, *lines = str(caught.value).splitlines()
    assert first == "workload 'trace' cannot be replayed:"
    return [line.strip() for line in lines]


def test_an_empty_workload_is_refused() -> None:
    assert faults() == ["it has no requests"]


def test_every_fault_is_named_at_once() -> None:
    assert faults(
        request("a", 5.0),
        request("b", 4.0, prompt_tokens=0),
        request("a", 6.0, output_tokens=-1),
        request("c", math.nan),
        request("d", 7.0, max_tokens=0),
        request("e", math.inf),
    ) == [
        "request 'b': arrives at 4.0 s, before its predecessor; sort by arrival_s",
        "request 'b': prompt_tokens is 0, expected at least 1",
        "request 'a': the id is used twice",
        "request 'a': output_tokens is -1, expected at least 1",
        "request 'c': arrival_s is nan, expected a finite time",
        "request 'd': max_tokens is 0, expected at least 1",
        "request 'e': arrival_s is inf, expected a finite time",
    ]


def test_many_faults_are_cut_and_counted() -> None:
    lines = faults(*(request(f"r{i}", prompt_tokens=0) for i in range(13)))
    assert len(lines) == 11
    assert lines[-1] == "... and 3 more"


def test_one_early_arrival_does_not_make_its_successors_early() -> None:
    lines = faults(request("a", 5.0), request("b", 1.0), request("c", 5.0))
    assert len(lines) == 1
    assert lines[0].startswith("request 'b'")


def test_the_span_lies_between_the_first_and_the_last_arrival() -> None:
    assert Workload("w", (request("a", 2.0), request("b", 9.5))).span_s == 7.5
    assert Workload("w", (request("a", 2.0),)).span_s == 0.0


def test_classes_come_by_their_most_urgent_priority_then_by_name() -> None:
    made = [("batch", 5), ("chat", 1), ("bulk", 5), ("batch", 0), ("", 1)]
    requests = tuple(
        request(f"r{i}", request_class=name, priority=priority)
        for i, (name, priority) in enumerate(made)
    )
    assert Workload("w", requests).classes() == ["batch", "", "chat", "bulk"]


def test_stretching_multiplies_the_gaps_and_starts_at_zero() -> None:
    workload = Workload("w", tuple(request(f"r{i}", t) for i, t in enumerate([4.0, 5.0, 8.0])))
    assert [r.arrival_s for r in workload.stretched(0.5).requests] == [0.0, 0.5, 2.0]
    assert [r.arrival_s for r in workload.stretched(2.0).requests] == [0.0, 2.0, 8.0]


def test_stretching_keeps_the_distance_of_deadlines_and_cancellations() -> None:
    workload = Workload(
        "w", (request("a", 4.0), request("b", 6.0, deadline_s=7.5, cancel_at_s=7.0))
    )
    a, b = workload.stretched(3.0).requests
    assert (b.arrival_s, b.deadline_s, b.cancel_at_s) == (6.0, 7.5, 7.0)
    assert (a.deadline_s, a.cancel_at_s) == (math.inf, math.inf)
    a, b = workload.stretched(0.25).requests
    assert (b.arrival_s, b.deadline_s, b.cancel_at_s) == (0.5, 2.0, 1.5)


def test_equal_workloads_have_equal_digests_whatever_their_names() -> None:
    one = Workload("one", (request("a"), request("b", 1.0, tenant="t")))
    two = Workload("two", (request("a"), request("b", 1.0, tenant="t")))
    assert one.digest() == two.digest()
    assert len(one.digest()) == 64


CHANGES: dict[type, Any] = {int: 7, float: 7.25, str: "other", tuple: ("other",)}


@pytest.mark.parametrize("name", [field.name for field in fields(WorkloadRequest)])
def test_a_change_of_any_field_changes_the_digest(name: str) -> None:
    # Who follows another comes behind it.
    others = (request("other"),) if name == "arrival_after" else ()
    before = request("a", prefix_block_tokens=2)
    value = getattr(before, name)
    new = 3.25 if isinstance(value, float) else CHANGES[type(value)]
    after = replace(before, **{name: new})
    assert Workload("w", (*others, before)).digest() != Workload("w", (*others, after)).digest()


def test_the_order_of_requests_is_part_of_the_digest() -> None:
    a, b = request("a"), request("b")
    assert Workload("w", (a, b)).digest() != Workload("w", (b, a)).digest()


@given(
    st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20).map(sorted), st.floats(0.001, 1000.0)
)
def test_a_stretched_workload_is_one_that_can_be_replayed(
    arrivals: list[float], factor: float
) -> None:
    workload = Workload("w", tuple(request(f"r{i}", t) for i, t in enumerate(arrivals)))
    stretched = workload.stretched(factor)
    assert stretched.requests[0].arrival_s == 0.0
    assert stretched.span_s == pytest.approx(workload.span_s * factor)
