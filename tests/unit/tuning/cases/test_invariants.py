from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from batchpolicy.requests import Status
from batchpolicy.workload import Workload
from batchpolicy_tuning.cases.invariants import INVARIANTS, facts_kept, same_twice
from batchpolicy_tuning.cases.stints import inferred_hit
from batchpolicy_tuning.cases.trace import Trace
from tests.unit.tuning.cases.scripted import LIMITS, Step, played, request

A, B, C = request("a", 10, 2), request("b", 20, 1), request("c", 30, 1)
PLAIN = (Step(0.0, {"a": 10, "b": 20}), Step(1.0, {"a": 1, "c": 30}))


def _broken(trace: Trace) -> dict[str, list[str]]:
    found = {name: list(rule(trace)) for name, (_, rule) in INVARIANTS.items()}
    return {name: texts for name, texts in found.items() if texts}


def test_all_hold_in_a_plain_run_with_a_preemption() -> None:
    assert _broken(played((A, B, C), PLAIN)) == {}
    steps = (
        Step(0.0, {"a": 10, "b": 15}),
        Step(1.0, {"b": 5}, preempted=("a",)),
        Step(2.0, {"a": 11, "c": 30}),
    )
    assert _broken(played((A, B, C), steps)) == {}


@pytest.mark.parametrize(
    ("limits", "facts", "said"),
    [
        ({"max_num_batched_tokens": 30}, {}, "31 tokens of 30 in step 1 at 1 s"),
        ({"max_num_seqs": 1}, {}, "2 running requests of 1 in step 0 at 0 s"),
        # 11 tokens of a and 30 of c, in blocks of 10, where 3 blocks held a and b.
        ({"kv_blocks": 4}, {}, "5 KV blocks of 4 in step 1 at 1 s"),
        ({"max_loras": 1}, {"lora": ("x", "y", "")}, "2 adapters of 1 in step 0 at 0 s"),
        ({"max_waiting": 2}, {"waiting": 3}, "3 waiting requests of 2 in step 0 at 0 s"),
        (
            {"encoder_cache_tokens": 7},
            {"encoder_tokens": (4, 4, 0)},
            "8 encoder tokens of 7 in step 0 at 0 s",
        ),
    ],
)
def test_a_step_beyond_a_limit_breaks_the_first(
    limits: dict[str, Any], facts: dict[str, Any], said: str
) -> None:
    requests = [
        replace(r, **{name: values[i] for name, values in facts.items() if name != "waiting"})
        for i, r in enumerate((A, B, C))
    ]
    steps = (PLAIN[0]._replace(waiting=facts.get("waiting", 0)), PLAIN[1])
    found = _broken(played(requests, steps, limits=replace(LIMITS, **limits)))
    assert found["I1"][0] == said


def test_without_chunks_a_part_of_a_prompt_breaks_the_first() -> None:
    steps = (Step(0.0, {"b": 15}), Step(1.0, {"b": 5}))
    limits = replace(LIMITS, chunked_prefill=False)
    assert _broken(played((B,), steps, limits=limits)) == {
        "I1": ["a part of the prompt of 'b' in step 0 at 0 s"]
    }
    assert _broken(played((B,), steps)) == {}


def test_a_shared_prefix_is_held_once() -> None:
    one = request("p", 50, 1, prefix_id="s", prefix_tokens=40)
    two = replace(one, id="q")
    steps = (Step(0.0, {"p": 50, "q": 50}, free=14),)
    # 4 blocks of prefix, and one each.
    limits = replace(LIMITS, kv_blocks=6, prefix_cache=True)
    assert "I1" not in _broken(played((one, two), steps, limits=limits))
    found = _broken(played((one, two), steps, limits=replace(limits, kv_blocks=5)))
    assert found["I1"] == ["6 KV blocks of 5 in step 0 at 0 s"]


@pytest.mark.parametrize(
    ("steps", "more", "said"),
    [
        (
            PLAIN[:1],
            {"ends": {"a": (Status.FINISHED, 1.0), "c": (Status.ABORTED, 0.5)}},
            "'a' finished with 1 of 2 tokens",
        ),
        (PLAIN, {"lies": {"output_tokens": {"a": 3}}}, "'a' emitted 2 tokens and the run says 3"),
        (
            (Step(0.0, {"a": 11, "b": 20}), Step(1.0, {"c": 30})),
            {"ends": {"a": (Status.ABORTED, 1.5)}},
            "step 0: 'a' computes 11 tokens, expected 1 to 10",
        ),
    ],
)
def test_tokens_that_are_missing_or_too_many_break_the_second(
    steps: Sequence[Step], more: dict[str, Any], said: str
) -> None:
    assert said in _broken(played((A, B, C), steps, **more))["I2"]


@pytest.mark.parametrize(
    ("steps", "more", "said"),
    [
        (
            (*PLAIN, Step(2.0, {"b": 1})),
            {},
            "step 2: 'b' runs at 2 s, after its end",
        ),
        (
            (PLAIN[0], PLAIN[1]._replace(preempted=("c",))),
            {},
            "step 1: 'c' is preempted and does not run",
        ),
        (
            PLAIN,
            {"lies": {"finished_s": {"b": math.nan}}},
            "'b' is finished with its end at nan s",
        ),
        (PLAIN, {"lies": {"finished_s": {"b": 0.5}}}, "its last token came at 1 s"),
        (
            PLAIN,
            {"lies": {"first_token_s": {"a": 0.5}}},
            "first_token_s of 'a' is 1 by the steps and 0.5 by the run",
        ),
        (
            PLAIN,
            {"lies": {"preemptions": {"a": 1}}},
            "preemptions of 'a' is 0 by the steps and 1 by the run",
        ),
    ],
)
def test_two_states_at_a_time_break_the_third(
    steps: Sequence[Step], more: dict[str, Any], said: str
) -> None:
    found = _broken(played((A, B, C), steps, **more))["I3"]
    assert any(said in text for text in found), found


def test_a_request_that_runs_before_it_came_or_could_start_breaks_the_third() -> None:
    early = (request("x", 10, 1, at=0.5), request("y", 10, 1, at=0.5, ready_at_s=2.0))
    found = _broken(played(early, (Step(0.0, {"x": 10}), Step(1.0, {"y": 10}))))
    assert found["I3"] == [
        "step 0: 'x' runs at 0 s, which can start from 0.5 s on",
        "step 1: 'y' runs at 1 s, which can start from 2 s on",
    ]


def test_a_pause_breaks_the_fourth_only_if_somebody_fits() -> None:
    steps = (PLAIN[0], PLAIN[1]._replace(start_s=1.5))
    found = _broken(played((A, B, C), steps))
    assert found == {"I4": ["nothing runs from 1 to 1.5 s although 'a' could"]}
    # Alone there is nobody before 2 s, and what can never fit is no reason to run.
    huge = request("huge", 500, 1)
    late = request("late", 10, 1, at=2.0)
    trace = played((huge, late), (Step(2.0, {"late": 10}),), ends={"huge": (Status.REFUSED, 2.0)})
    assert _broken(trace) == {}


def test_a_pause_at_the_end_counts_as_well() -> None:
    waits = request("waits", 10, 1, cancel_at_s=4.0)
    trace = played((A, waits), (Step(0.0, {"a": 10}), Step(1.0, {"a": 1})),
                   ends={"waits": (Status.ABORTED, 4.0)})  # fmt: skip
    assert _broken(trace) == {"I4": ["nothing runs from 2 to 4 s although 'waits' could"]}


def test_computing_the_same_again_for_more_than_5_s_breaks_the_fifth() -> None:
    def again(count: int) -> list[Step]:
        steps = [Step(0.0, {"a": 5})]
        steps += [Step(1.0 + k, {"a": 5}, preempted=("a",)) for k in range(count)]
        end_s = 1.0 + count
        return [*steps, Step(end_s, {"a": 5}), Step(end_s + 1.0, {"a": 1})]

    assert _broken(played((A,), again(5))) == {}
    assert _broken(played((A,), again(6))) == {
        "I5": ["nothing new from 1 to 7 s although 'a' is there"]
    }


def test_a_request_that_never_ends_breaks_the_fifth_and_holds_memory() -> None:
    found = _broken(played((A,), (Step(0.0, {"a": 10}),)))
    assert found["I5"] == ["'a' has not ended"]
    assert found["I6"] == ["'a' holds 10 tokens at the end"]


def test_a_block_that_is_lost_on_the_way_breaks_the_sixth() -> None:
    steps = (PLAIN[0]._replace(free=16), PLAIN[1])
    assert _broken(played((A, B, C), steps)) == {
        "I6": ["1 of 20 KV blocks are nobody's in step 0"]
    }


def test_two_runs_that_differ_break_the_seventh() -> None:
    one, same = played((A, B, C), PLAIN), played((A, B, C), PLAIN)
    assert list(same_twice(one, same)) == []
    later = played((A, B, C), (PLAIN[0], PLAIN[1]._replace(start_s=1.25)))
    assert len(list(same_twice(one, later))) == 1
    longer = played((A, B, C), (*PLAIN, Step(2.0, {})))
    assert list(same_twice(one, longer)) == ["2 steps and then 3"]
    lying = played((A, B, C), PLAIN, lies={"first_token_s": {"a": 0.5}})
    assert list(same_twice(one, lying)) == ["equal steps with other results"]


def test_facts_that_come_out_changed_break_the_eighth() -> None:
    workload = Workload("w", (A, B))
    run = played((A, B), PLAIN[:1]).run
    assert list(facts_kept(workload, workload.digest(), run)) == []
    changed = replace(run, workload=Workload("w", (replace(A, priority=1), B)))
    (said,) = facts_kept(workload, workload.digest(), changed)
    assert said.startswith("'a' went in as")
    assert list(facts_kept(workload, "another", run)) == ["the workload was changed"]
    fewer = replace(run, workload=Workload("w", (A,)))
    assert list(facts_kept(workload, workload.digest(), fewer)) == [
        "2 requests went in and 1 came out"
    ]


def test_when_a_follower_comes_is_no_fact_of_the_workload() -> None:
    follower = request("f", 10, 1, arrival_after="a", gap_s=1.0)
    workload = Workload("w", (A, follower))
    run = replace(
        played((A, B), PLAIN[:1]).run,
        workload=Workload("w", (A, replace(follower, arrival_s=3.0))),
    )
    assert list(facts_kept(workload, workload.digest(), run)) == []


@pytest.mark.parametrize(
    ("stint", "needed", "hit"),
    [
        ([13, 1, 1], 45, 32),  # 32 of 45 were found, and two more tokens came out
        ([45], 45, 0),
        ([1, 1], 33, 32),  # found all but one
        ([16, 1], 49, 32),  # the budget cut the prefill: 16 and 1
        ([7], 45, 0),  # ended before its prefill did; nothing is known
    ],
)
def test_what_a_prefix_cache_kept_follows_from_the_tokens(
    stint: list[int], needed: int, hit: int
) -> None:
    assert inferred_hit(stint, needed, 16) == hit


CACHED = replace(LIMITS, prefix_cache=True, kv_block_tokens=16, kv_blocks=40)


@pytest.mark.parametrize(
    ("before", "again", "token_s"),
    [
        # Before its first token: the second step brings it, and 24 of 40 tokens were missing.
        (30, (16, 8, 1), [4.0, 5.0]),
        # After its first token: two are left for two steps, and 9 of 41 tokens were missing.
        (40, (9, 1), [1.0, 3.0, 4.0]),
    ],
)
def test_what_was_found_again_in_a_prefix_cache_follows_from_how_the_run_ends(
    before: int, again: tuple[int, ...], token_s: list[float]
) -> None:
    steps = [Step(0.0, {"r": before}), Step(1.0, {}, preempted=("r",), duration_s=0.0)]
    steps += [Step(2.0 + k, {"r": n}) for k, n in enumerate(again)]
    # The scripted engine knows no cache; this is what one with a cache would say.
    said = {
        "status": float(Status.FINISHED),
        "first_token_s": token_s[0],
        "finished_s": token_s[-1],
        "output_tokens": float(len(token_s)),
        "longest_gap_s": max(b - a for a, b in pairwise(token_s)),
    }
    lies = {name: {"r": value} for name, value in said.items()}
    trace = played((request("r", 40, len(token_s)),), steps, lies=lies, limits=CACHED)
    assert trace.courses["r"].token_s == token_s
    assert not trace.courses["r"].guessed
    assert _broken(trace) == {"I4": ["nothing runs from 1 to 2 s although 'r' could"]}


def test_displaced_requests_are_not_of_those_that_a_limit_on_waiting_counts() -> None:
    # One waits for its first start, and one was displaced.
    steps = (
        Step(0.0, {"a": 10}),
        Step(1.0, {"b": 20}, preempted=("a",), waiting=2),
        Step(2.0, {"a": 11, "c": 30}),
    )
    limits = replace(LIMITS, max_waiting=1)
    assert _broken(played((A, B, C), steps, limits=limits)) == {}
