from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchpolicy.requests import Status
from batchpolicy_tuning.cases.check_specs import CHECKS, Later
from batchpolicy_tuning.cases.checks import JUDGES
from tests.unit.tuning.cases.scripted import LIMITS, Step, judged, played, request

# "a" runs from 0 to 4 s, displaced at 1 s and back at 2 s: its 10 prompt tokens and the
# token that it had emitted are computed again. "b" takes its place from 1 to 3 s. "gone"
# never starts and leaves at 2.5 s.
REQUESTS = (
    request("a", 10, 3, tenant="A", lora="x", deadline_s=4.0),
    request("b", 20, 2, at=0.5, tenant="B", lora="y", deadline_s=2.0),
    request("gone", 5, 1, at=0.5, cancel_at_s=2.5),
)
STEPS = (
    Step(0.0, {"a": 10}),
    Step(1.0, {"b": 20}, preempted=("a",)),
    Step(2.0, {"b": 1, "a": 11}),
    Step(3.0, {"a": 1}),
)
TRACE = played(REQUESTS, STEPS, ends={"gone": (Status.ABORTED, 2.5)})
# The same, but "a" is computed to the end first, and "gone" gets its token after it left.
OTHER = played(
    REQUESTS,
    (
        Step(0.0, {"a": 10}),
        Step(1.0, {"a": 1}),
        Step(2.0, {"a": 1, "gone": 5}),
        Step(3.0, {"b": 20}),
        Step(4.0, {"b": 1}),
    ),
)
A_BLOCK_LESS = played(REQUESTS, (*STEPS[:-1], Step(3.0, {"a": 1}, free=17)))

HOLDS: list[dict[str, Any]] = [
    {"kind": "all_finish", "ids": ["a", "b"]},
    {"kind": "status", "ids": ["gone"], "in": ["aborted", "expired"]},
    {"kind": "ttft_max", "ids": ["a"], "max_s": 1.0},
    {"kind": "ttft_max", "ids": ["a", "b"], "max_s": 1.0, "percentile": 50},
    {"kind": "wait_max", "ids": ["a", "b"], "max_s": 0.5},
    {"kind": "e2e_max", "ids": ["a"], "max_s": 4.0},
    {"kind": "itl_max", "ids": ["a"], "max_s": 2.0},
    {"kind": "within", "ids": ["gone"], "event": "finish", "min_s": 2.0, "max_s": 2.0},
    {"kind": "order", "event": "finish", "ids": ["gone", "b", "a"]},
    {"kind": "before", "event": "finish", "first": ["b"], "then": ["a"]},
    {"kind": "preemptions_max", "max_each": 1, "max_total": 1},
    {"kind": "recomputed_tokens_max", "max": 10},
    {"kind": "prefilled_tokens_max", "ids": ["a"], "max": 21},
    {"kind": "computed_tokens_max", "ids": ["a"], "max": 22},
    {"kind": "makespan_max", "max_s": 4.0},
    {"kind": "slo_met_min", "ids": ["a", "b"], "min_count": 1},
    # Steps that end in the window: all 20 of B's prompt against 10 of A's.
    {"kind": "share_between", "tenant": "A", "tenants": ["A", "B"], "window_s": [0, 2],
     "min": 0.33, "max": 0.34},
    {"kind": "lora_cap", "max_loras": 2},
    {"kind": "no_idle_with_work"},
    {"kind": "same_twice"},
    {"kind": "finished_or_aborted"},
    {"kind": "first_scheduled_in_submission_order"},
    {"kind": "no_output_after_cancel", "slack_s": 0},
    {"kind": "ended_kv_zero"},
    {"kind": "decision_cost_ratio_max", "small_queue": 10, "large_queue": 1000, "max": 100},
    {"kind": "policy_cpu_max", "max_s": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("check", HOLDS, ids=lambda check: check["kind"])
def test_a_check_holds_where_the_run_is_as_asked_for(check: dict[str, Any]) -> None:
    assert judged(TRACE, **check) is None


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"kind": "all_finish"}, "gone aborted with 0 of 1 tokens"),
    ({"kind": "status", "ids": ["a"], "in": ["rejected"]}, "finished (a)"),
    ({"kind": "ttft_max", "ids": ["a", "b"], "max_s": 1.4}, "1.5 s (b)"),
    ({"kind": "ttft_max", "ids": ["a", "b"], "max_s": 1.4, "percentile": 51}, "1.5 s"),
    ({"kind": "wait_max", "ids": ["b"], "max_s": 0.4}, "0.5 s (b)"),
    # Its client waited for 2 s and was not served; it might have been after that.
    ({"kind": "wait_max", "ids": ["gone"], "max_s": 1.9}, "2 s (gone)"),
    ({"kind": "e2e_max", "ids": ["*"], "max_s": 3.9}, "4 s (a)"),
    ({"kind": "itl_max", "ids": ["a"], "max_s": 1.9}, "2 s (a)"),
    ({"kind": "within", "ids": ["b"], "event": "first_token", "min_s": 2.0}, "1.5 s (b)"),
    ({"kind": "within", "ids": ["gone"], "event": "first_token"}, "never (gone)"),
    ({"kind": "order", "event": "finish", "ids": ["a", "b"]}, "b at 3 s before a at 4 s"),
    ({"kind": "before", "event": "finish", "first": ["a"], "then": ["b"]}, "a at 4 s after b"),
    ({"kind": "preemptions_max", "ids": ["a"], "max_each": 0}, "1 (a)"),
    ({"kind": "preemptions_max", "max_total": 0}, "1 in all"),
    ({"kind": "recomputed_tokens_max", "max": 9}, "10"),
    ({"kind": "prefilled_tokens_max", "ids": ["a"], "max": 20}, "21"),
    ({"kind": "computed_tokens_max", "ids": ["a"], "max": 21}, "22"),
    ({"kind": "makespan_max", "max_s": 3.9}, "4 s (a)"),
    ({"kind": "slo_met_min", "ids": ["a", "b"], "min_count": 2}, "1; late: b at 3 s"),
    ({"kind": "share_between", "tenant": "A", "tenants": ["A", "B"], "window_s": [0, 2],
      "max": 0.33}, "33.3%"),
    ({"kind": "lora_cap", "max_loras": 1}, "2"),
    ({"kind": "decision_cost_ratio_max", "small_queue": 10, "large_queue": 1000, "max": 99},
     "100 times: 1000 us with 1000, 10 us with 10"),
    ({"kind": "policy_cpu_max", "max_s": 0.4}, "0.5 s"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "found"),
    BROKEN,
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_a_check_says_what_it_found_where_it_does_not_hold(
    check: dict[str, Any], found: str
) -> None:
    failure = judged(TRACE, **check)
    assert failure is not None
    assert failure.kind == check["kind"]
    assert found in failure.found


def test_an_end_in_another_state_is_told() -> None:
    expired = played(REQUESTS, STEPS, ends={"gone": (Status.EXPIRED, 2.5)})
    failure = judged(expired, kind="finished_or_aborted")
    assert failure is not None
    assert failure.found == "expired (gone)"


def test_a_later_request_that_starts_first_is_told() -> None:
    failure = judged(OTHER, kind="first_scheduled_in_submission_order")
    assert failure is not None
    assert failure.found == "gone at 2 s before b at 3 s"


def test_a_token_after_the_client_left_is_told_beyond_the_slack() -> None:
    assert judged(OTHER, kind="no_output_after_cancel", slack_s=0.5) is None
    failure = judged(OTHER, kind="no_output_after_cancel", slack_s=0.4)
    assert failure is not None
    assert failure.found == "3 s (gone, cancelled 2.5 s)"


def test_a_second_run_that_goes_another_way_is_told() -> None:
    failure = judged(TRACE, again=OTHER, kind="same_twice")
    assert failure is not None
    assert failure.found.startswith("step 1 differs: {'b': 20} at 1.0 s")


def test_a_pause_with_somebody_waiting_is_told() -> None:
    late = played((request("a", 10, 1),), (Step(0.5, {"a": 10}),))
    failure = judged(late, kind="no_idle_with_work")
    assert failure is not None
    assert failure.found == "nothing runs from 0 to 0.5 s although 'a' could"


def test_blocks_that_nobody_holds_and_that_are_not_free_are_told() -> None:
    failure = judged(A_BLOCK_LESS, kind="ended_kv_zero")
    assert failure is not None
    assert failure.found == "1 of 20 KV blocks are nobody's in step 3"


def test_a_client_that_leaves_within_the_bound_does_not_break_it() -> None:
    assert judged(TRACE, kind="ttft_max", ids=["gone"], max_s=2.0) is None


def test_the_engines_own_number_of_adapters_is_the_cap_by_default() -> None:
    for most, holds in ((2, True), (1, False)):
        trace = played(REQUESTS, STEPS, limits=replace(LIMITS, max_loras=most))
        assert (judged(trace, kind="lora_cap") is None) is holds


def test_each_kind_is_judged_or_for_later_and_is_tested_both_ways() -> None:
    # Those of the tuner judge no run: test_tuning_case.py.
    now = {
        kind
        for kind, spec in CHECKS.items()
        if spec is not Later and not kind.startswith("tuning_")
    }
    assert set(JUDGES) == now
    assert {check["kind"] for check in HOLDS} == now
    by_themselves = {
        "finished_or_aborted",
        "first_scheduled_in_submission_order",
        "no_output_after_cancel",
        "same_twice",
        "no_idle_with_work",
        "ended_kv_zero",
    }
    assert {check["kind"] for check, _ in BROKEN} | by_themselves == now
