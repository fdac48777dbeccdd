from __future__ import annotations

from typing import Any

from batchpolicy_tuning.page.courses import Course, courses

REQUEST = {
    "id": "r1",
    "class": "chat",
    "tenant": "t1",
    "priority": 3,
    "prompt_tokens": 1200,
    "ttft_slo_s": 1.0,
    "tpot_slo_s": "inf",
}
TOLD = {
    "status": "finished",
    "arrival_s": 2.0,
    "first_scheduled_s": 2.5,
    "first_token_s": 3.5,
    "ended_s": 9.0,
    "output_tokens": 100,
    "cached_tokens": 16,
    "preempted_s": [],
}


def _course(request: dict[str, Any] | None = None, **told: Any) -> Course:
    policy = {"series": {"end_s": 20.0}, "requests": [{**TOLD, **told}]}
    at = {"recorded": {"requests": [{**REQUEST, **(request or {})}]}}
    (found,) = courses(at, policy)
    return found


def test_a_request_waits_then_prefills_then_decodes() -> None:
    found = _course()
    assert found.stays == [("waiting", 2.0, 2.5), ("prefill", 2.5, 3.5), ("decode", 3.5, 9.0)]
    assert found.end_s == 9.0
    assert found.missed_at_s == 3.0
    assert found.facts.split("<br>") == [
        "chat, t1, request r1",
        "finished, priority 3, arrived at 2.00 s",
        "1,200 prompt tokens (16 cached), 100 output tokens",
        "waiting 500 ms, prefill 1 s, decode 5.5 s",
        "TTFT 1.5 s, E2E 7 s",
        "TTFT target 1 s",
    ]


def test_preemptions_cut_prefill_and_decode() -> None:
    assert _course(preempted_s=[[2.8, 3.0], [5.0, 6.0]]).stays == [
        ("waiting", 2.0, 2.5),
        ("prefill", 2.5, 2.8),
        ("preempted", 2.8, 3.0),
        ("prefill", 3.0, 3.5),
        ("decode", 3.5, 5.0),
        ("preempted", 5.0, 6.0),
        ("decode", 6.0, 9.0),
    ]


def test_what_never_started_or_never_came_back_goes_on_to_the_end_of_the_run() -> None:
    never = {"first_scheduled_s": None, "first_token_s": None, "ended_s": None}
    waiting = _course(**never, status="waiting")
    assert waiting.stays == [("waiting", 2.0, 20.0)]
    assert waiting.missed_at_s == 3.0
    gone = _course(preempted_s=[[5.0, None]], ended_s=None)
    assert gone.stays[-2:] == [("decode", 3.5, 5.0), ("preempted", 5.0, 20.0)]


def test_a_request_without_target_misses_none() -> None:
    found = _course({"ttft_slo_s": "inf"})
    assert found.missed_at_s is None
    assert "target" not in found.facts


def test_names_are_text_to_plotly() -> None:
    found = _course({"tenant": "<a href='javascript:x'>&lt;"})
    assert found.facts.startswith("chat, &lt;a href='javascript:x'&gt;&amp;lt;, request r1<br>")
