from __future__ import annotations

from typing import Any

import pytest

from batchpolicy.config import config_named
from batchpolicy.errors import StepLimitReached, WorkloadError
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from tests.unit.sim.light import LIMITS, SECOND, Served, request


def test_prompts_are_cut_to_the_budget_behind_the_decodes() -> None:
    served = Served(request("a", 70, 3), request("b", 100, 2))
    assert served.plans == [
        {"a": 64},
        {"a": 6, "b": 58},
        {"a": 1, "b": 42},
        {"a": 1, "b": 1},
    ]
    # The last step only tells the workers who has ended.
    assert served.run.steps == 5
    assert served.of("first_token_s") == {"a": 2.0, "b": 3.0}
    assert served.of("finished_s") == {"a": 4.0, "b": 4.0}
    assert served.of("output_tokens") == {"a": 3, "b": 2}


def test_a_cap_on_prompt_chunks_leaves_tokens_to_others_and_spares_who_is_alone() -> None:
    served = Served(
        request("a", 50, 1), request("b", 10, 1, at=0.5), long_prefill_token_threshold=16
    )
    assert served.plans == [{"a": 50}, {"b": 10}]
    served = Served(request("a", 50, 1), request("b", 10, 1), long_prefill_token_threshold=16)
    assert served.plans == [{"a": 16, "b": 10}, {"a": 34}]


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    served = Served(request("a", 40, 3), request("b", 60, 1), chunked_prefill=False)
    assert served.plans == [{"a": 40}, {"a": 1, "b": 60}, {"a": 1}]
    served = Served(request("a", 40, 2), request("b", 64, 1), chunked_prefill=False)
    assert served.plans == [{"a": 40}, {"a": 1}, {"b": 64}]


def test_short_of_blocks_the_last_one_starts_anew_and_its_tokens_stay() -> None:
    # 4 blocks of 8 tokens each: in the step that takes both past 16 there are 3 for two.
    served = Served(request("a", 15, 6), request("b", 15, 6), kv_blocks=5)
    assert served.plans[:2] == [{"a": 15, "b": 15}, {"a": 1, "b": 1}]
    assert served.plans[2] == {"a": 1}
    assert served.steps[2].preempted == ("b",)
    # 15 + 2 tokens take 3 blocks, which are there once a has ended.
    assert served.plans[5:8] == [{"a": 1}, {"b": 17}, {"b": 1}]
    assert served.of("output_tokens") == {"a": 6, "b": 6}
    assert served.of("preemptions") == {"a": 0, "b": 1}
    assert served.of("recomputed_tokens") == {"a": 0, "b": 16}
    assert served.of("longest_gap_s") == {"a": 1.0, "b": 5.0}


def test_in_order_of_priority_the_worst_one_gives_its_blocks() -> None:
    strict = config_named("priority").model_copy(update={"preempt": "never"})
    strict = strict.model_copy(
        update={"policy": strict.policy.model_copy(update={"params": {"ageing_s": "inf"}})}
    )
    served = Served(
        request("a", 15, 6, priority=5), request("b", 15, 6, priority=0), kv_blocks=5,
        config=strict,
    )  # fmt: skip
    assert served.steps[2].preempted == ("a",)
    assert list(served.plans[0]) == ["b", "a"]


def test_a_watermark_keeps_blocks_free_from_admission_but_not_from_who_runs() -> None:
    # One request alone may take all; a second one must leave 10 of 101 blocks free.
    served = Served(
        request("a", 60, 3), request("b", 4, 1), kv_blocks=12, watermark=0.4, kv_block_tokens=8
    )
    # 8 blocks are held, and 1 of the other 4 would leave 3 of the int(0.4 * 13) = 5.
    assert served.plans[0] == {"a": 60}
    assert served.plans[-1] == {"b": 4}


def test_never_more_adapters_run_than_may_and_others_pass() -> None:
    served = Served(
        request("a", 4, 3, lora="A"), request("b", 4, 1, lora="B"), request("c", 4, 1),
        request("d", 4, 1, lora="A"), max_loras=1,
    )  # fmt: skip
    assert served.plans[0] == {"a": 4, "c": 4, "d": 4}
    assert served.plans[-1] == {"b": 4}
    assert served.of("first_scheduled_s")["b"] == 3.0


def test_encoder_space_is_held_until_the_prompt_is_done() -> None:
    served = Served(
        request("a", 100, 4, encoder_tokens=60), request("b", 4, 1, encoder_tokens=60),
        encoder_cache_tokens=100,
    )  # fmt: skip
    assert served.plans == [{"a": 64}, {"a": 36}, {"a": 1, "b": 4}, {"a": 1}, {"a": 1}]


def test_a_blocked_request_is_passed_until_it_is_ready() -> None:
    served = Served(
        request("a", 4, 1, ready_at_s=2.5), request("b", 4, 5), request("c", 4, 1, at=1.0)
    )
    assert served.of("first_scheduled_s") == {"a": 3.0, "b": 0.0, "c": 1.0}
    alone = Served(request("a", 4, 1, ready_at_s=2.5))
    assert alone.of("first_scheduled_s") == {"a": 2.5}


def test_under_a_policy_a_blocked_request_is_passed_as_well() -> None:
    served = Served(
        request("a", 4, 1, ready_at_s=2.5), request("b", 4, 5), config=config_named("benefit")
    )
    assert served.of("first_scheduled_s") == {"a": 3.0, "b": 0.0}


@pytest.mark.parametrize("policy", ["fcfs", "benefit"])
def test_a_cancelled_request_stops_at_the_next_step(policy: str) -> None:
    served = Served(
        request("a", 4, 9, cancel_at_s=2.5), request("b", 4, 2, cancel_at_s=0.0),
        request("c", 4, 4), config=config_named(policy),
    )  # fmt: skip
    assert served.of("status") == {
        "a": int(Status.ABORTED), "b": int(Status.ABORTED), "c": int(Status.FINISHED)
    }  # fmt: skip
    assert served.of("finished_s") == {"a": 3.0, "b": 0.0, "c": 4.0}
    assert served.of("output_tokens") == {"a": 3, "b": 0, "c": 4}
    assert served.steps[-1].free_kv_blocks == 99


def test_the_time_limit_of_the_queue_ends_who_has_not_started() -> None:
    served = Served(
        request("a", 4, 6), request("b", 4, 2, queue_ttl_s=3.0),
        max_num_seqs=1, config=config_named("benefit"),
    )  # fmt: skip
    assert served.of("status")["b"] == int(Status.EXPIRED)
    # It is over at 3.0, which the step that starts then finds, and its end tells.
    assert served.of("finished_s")["b"] == 4.0


@pytest.mark.parametrize("policy", ["fcfs", "benefit"])
def test_a_full_queue_refuses_the_least_urgent_at_once(policy: str) -> None:
    served = Served(
        request("runs", 4, 3),
        request("low", 4, 1, at=0.2, priority=9),
        request("high", 4, 1, at=0.4),
        request("late", 4, 1, at=0.6),
        max_num_seqs=1, max_waiting=1, config=config_named(policy),
    )  # fmt: skip
    refused = int(Status.REFUSED)
    assert served.of("status") == {"runs": 2, "low": refused, "high": 2, "late": refused}
    assert served.of("finished_s")["low"] == 1.0
    assert served.run.peak_waiting == 1


def test_a_follower_comes_after_the_end_of_the_other_and_the_run_says_when() -> None:
    served = Served(
        request("a", 4, 2),
        request("b", 4, 1, arrival_after="a", gap_s=3.5),
        request("c", 4, 1, at=1.0, arrival_after="b"),
        request("d", 4, 1, at=1.0, cancel_at_s=1.0),
        request("e", 4, 1, arrival_after="d", gap_s=0.25),
        request("f", 4, 1, arrival_after="d"),
    )
    came_s = [r.arrival_s for r in served.run.workload.requests]
    assert came_s == [0.0, 5.5, 6.5, 1.0, 1.25, 1.0]
    ends_s = {"a": 2.0, "b": 6.5, "c": 7.5, "d": 1.0, "e": 3.0, "f": 2.0}
    assert served.of("finished_s") == ends_s


@pytest.mark.parametrize(
    ("asked", "limits", "words"),
    [
        (request("a", 60, 6, lora="A"), {}, "LoRA adapter 'A', of an engine that is set up"),
        (request("a", 6, 6), {"async_scheduling": True}, "plans each step when the results"),
    ],
)
def test_what_the_engine_is_not_set_up_for_is_refused_by_name(
    asked: WorkloadRequest, limits: dict[str, Any], words: str
) -> None:
    with pytest.raises(WorkloadError, match=words):
        Served(asked, **limits)


def test_a_run_that_takes_too_many_steps_is_stopped() -> None:
    with pytest.raises(StepLimitReached, match="2 steps did not serve it, 1 of 1 requests"):
        LightEngine().replay(
            Workload("w", (request("a", 4, 9),)), None, LIMITS, SECOND, max_steps=2
        )


def test_the_engine_is_found_by_name() -> None:
    from batchpolicy import registry

    assert isinstance(registry.engine("light"), LightEngine)
