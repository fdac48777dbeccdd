from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchpolicy_vllm.queue import PlannedQueue

pytestmark = pytest.mark.engine


def request(request_id: str, arrival_time: float = 0.0) -> Any:
    return SimpleNamespace(request_id=request_id, arrival_time=arrival_time)


def queue_of(*ids: str) -> PlannedQueue:
    queue = PlannedQueue()
    for place, request_id in enumerate(ids):
        queue.add_request(request(request_id, float(place)))
    return queue


def taken(queue: PlannedQueue) -> list[str]:
    """Ids in the order in which an engine would take them in one step."""
    found: list[str] = []
    while queue:
        head = queue.peek_request()
        assert queue.pop_request() is head
        found.append(head.request_id)
    return found


def test_exactly_the_plan_is_offered_in_its_order() -> None:
    queue = queue_of("a", "b", "c", "d")
    queue.offer(["c", "a"])
    assert taken(queue) == ["c", "a"]
    assert [r.request_id for r in queue] == ["b", "d"]


def test_the_length_is_that_of_all_that_wait_whatever_is_on_offer() -> None:
    queue = queue_of("a", "b", "c")
    queue.offer([])
    assert not queue
    assert len(queue) == 3
    queue.offer(["b"])
    assert queue
    assert len(queue) == 3


def test_ids_that_do_not_wait_here_are_left_out() -> None:
    queue = queue_of("a")
    queue.offer(["gone", "a", "elsewhere"])
    assert taken(queue) == ["a"]


def test_what_leaves_during_the_step_is_not_offered() -> None:
    queue = queue_of("a", "b", "c")
    queue.offer(["a", "b", "c"])
    queue.remove_requests([request("a"), request("c"), request("never-here")])
    assert taken(queue) == ["b"]


def test_what_is_put_back_during_the_step_waits_for_the_next() -> None:
    queue = queue_of("a", "b")
    queue.offer(["a", "b"])
    skipped = queue.pop_request()
    assert queue.pop_request().request_id == "b"
    queue.prepend_requests([skipped])
    assert not queue
    queue.withdraw()
    assert queue
    queue.offer(["a"])
    assert taken(queue) == ["a"]


def test_a_request_that_comes_during_the_step_is_kept() -> None:
    queue = queue_of("a")
    queue.offer(["a"])
    queue.add_request(request("b"))
    queue.prepend_request(request("c"))
    assert taken(queue) == ["a"]
    assert len(queue) == 2


def test_outside_a_step_the_queue_is_as_long_as_it_is_true() -> None:
    queue = queue_of("a", "b")
    assert queue
    assert queue.peek_request().request_id == "a"
    assert taken(queue) == ["a", "b"]
    assert not queue


def test_without_a_plan_all_are_offered_in_order_of_arrival() -> None:
    queue = PlannedQueue()
    for request_id, arrival in (("late", 3.0), ("tie1", 1.0), ("tie2", 1.0), ("first", 0.5)):
        queue.add_request(request(request_id, arrival))
    queue.offer_all()
    assert taken(queue) == ["first", "tie1", "tie2", "late"]


def test_removing_one_that_is_not_there_is_an_error_and_several_are_not() -> None:
    queue = queue_of("a")
    queue.remove_requests([request("b")])
    with pytest.raises(KeyError):
        queue.remove_request(request("b"))
    queue.remove_request(request("a"))
    assert len(queue) == 0


def test_nothing_is_there_to_peek_when_the_offer_is_used_up() -> None:
    queue = queue_of("a", "b")
    queue.offer(["a"])
    queue.pop_request()
    with pytest.raises(IndexError, match="nothing on offer"):
        queue.peek_request()


def test_iteration_survives_removal() -> None:
    queue = queue_of("a", "b", "c")
    for one in queue:
        queue.remove_request(one)
    assert len(queue) == 0
