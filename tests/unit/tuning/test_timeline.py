from __future__ import annotations

from batchpolicy_tuning.document import document
from batchpolicy_tuning.timeline import MOST_REQUESTS
from tests.support.comparisons import QUEUE, Repeated, compared
from tests.support.serial_engine import request

# One request a second, each of 0.1 s, but for a crowd of 60 at 100 s.
CROWD = Repeated(
    tuple(
        request(f"r{i}", 100.0 if 100 <= i < 160 else float(i), 100, request_class="chat")
        for i in range(100)
    )
    + tuple(request(f"c{i}", 100.0, 100, request_class="chat") for i in range(60))
    + tuple(request(f"l{i}", 200.0 + i, 100, request_class="chat") for i in range(100))
)


def test_a_small_replication_is_shown_whole_and_alike_under_every_policy() -> None:
    (at,) = document(compared(Repeated(QUEUE)))["loads"]
    told = at["recorded"]
    assert [r["id"] for r in told["requests"]] == ["b0", "b1", "c"]
    assert told["window"] == "all 3 requests"
    fcfs, priority = told["policies"]
    assert [r["first_token_s"] for r in fcfs["requests"]] == [1.0, 2.0, 2.1]
    assert [r["first_token_s"] for r in priority["requests"]] == [1.0, 2.1, 1.1]
    assert fcfs["requests"][2] == {
        "status": "finished",
        "arrival_s": 0.5,
        "first_scheduled_s": 2.0,
        "first_token_s": 2.1,
        "ended_s": 2.1,
        "output_tokens": 1,
        "cached_tokens": 0,
        "preempted_s": [],
    }
    assert max(fcfs["series"]["waiting"]) == 1
    assert fcfs["series"]["end_s"] == 2.1


def test_of_a_large_one_requests_around_the_longest_queue_are_shown() -> None:
    (at,) = document(compared(CROWD, loads=[0.05], pairs=2))["loads"]
    told = at["recorded"]
    assert len(told["requests"]) == MOST_REQUESTS
    assert {"r99", "c0"} <= {r["id"] for r in told["requests"]}
    assert "l0" not in {r["id"] for r in told["requests"]}
    assert f"{MOST_REQUESTS} requests in a row, around the longest queue" in told["window"]
