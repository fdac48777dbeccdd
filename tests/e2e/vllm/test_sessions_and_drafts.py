"""Requests whose prompt comes in parts, and tokens that are drafted and thrown away."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.outputs import DraftTokenIds

from batchpolicy.requests import Requests
from batchpolicy_vllm import seams
from batchpolicy_vllm.model import make_scheduler, vllm_config
from batchpolicy_vllm.scheduler import scheduler_class
from tests.support.vllm_bench import Bench, answer, assert_columns_true
from tests.support.vllm_replays import BENEFIT, TIGHT, assert_no_fault

pytestmark = pytest.mark.engine

DRAFTS = 3


def known(bench: Bench) -> set[str]:
    """Ids that the runner has books on."""
    return set(bench.driver.runner._ledger.table.slots)


def test_a_session_is_a_request_for_each_of_its_parts() -> None:
    bench = Bench(replace(TIGHT, max_num_seqs=2), BENEFIT)
    bench.add("session", prompt=20, output=3, resumable=True)
    bench.add("other", output=30)
    bench.step(3)
    assert bench.answers["session"] == answer(3, 3)
    # It keeps its blocks and waits for its client; there is nothing to schedule.
    assert bench.running == ["other"]
    assert known(bench) == {"other"}
    bench.ended.clear()
    bench.add("session", prompt=10, output=3, resumable=True)
    # The new part and the text so far, but the last token, which is dropped.
    assert bench.row("session").prompt_tokens.tolist() == [20 + 2 + 10]
    bench.step(3)
    assert bench.answers["session"] == answer(3, 3)
    bench.ended.clear()
    bench.add("session", resumable=False)
    assert "session" not in bench.scheduler.requests
    assert known(bench) == {"other"}
    bench.drain()
    assert bench.free_blocks == TIGHT.kv_blocks
    assert_no_fault(bench.counters)


def test_a_part_that_came_early_goes_on_at_once() -> None:
    bench = Bench(TIGHT, BENEFIT)
    bench.add("session", prompt=20, output=3, resumable=True)
    bench.step()
    bench.add("session", prompt=10, output=3, resumable=True)
    bench.step(2)
    bench.ended.clear()
    assert known(bench) == {"session"}
    assert bench.running == []
    bench.step()
    assert bench.running == ["session"]
    bench.abort("session")
    assert known(bench) == set()
    assert_no_fault(bench.counters)


def test_a_client_may_leave_between_two_parts() -> None:
    bench = Bench(TIGHT, BENEFIT)
    bench.add("session", prompt=20, output=3, resumable=True)
    bench.step(3)
    bench.abort("session")
    bench.step()
    assert known(bench) == set()
    assert bench.free_blocks == TIGHT.kv_blocks
    assert_no_fault(bench.counters)


@pytest.fixture
def drafting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scheduler that may verify three drafted tokens with each decode."""
    drafts = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 2}
    arguments = functools.partial(seams.EngineArgs, speculative_config=drafts)
    monkeypatch.setattr(seams, "EngineArgs", arguments)
    config = vllm_config(TIGHT)
    return make_scheduler(scheduler_class(seams.Scheduler, BENEFIT, lambda: 0.0), config)


def speculate(scheduler: Any, accepted: int) -> None:
    """A step in which so many drafts of each request turn out right, and new ones are made."""
    output = scheduler.schedule()
    ids = list(output.num_scheduled_tokens)
    drafted = output.scheduled_spec_decode_tokens
    sampled = [[7] * (1 + min(accepted, len(drafted.get(i, ())))) for i in ids]
    scheduler.update_from_output(
        output,
        seams.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: place for place, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
        ),
    )
    scheduler.update_draft_token_ids(DraftTokenIds(ids, [[5] * DRAFTS for _ in ids]))


def test_drafts_are_charged_to_the_budget_and_rejected_ones_leave_the_columns(
    drafting: Any,
) -> None:
    scheduler, runner = drafting, drafting._driver.runner
    assert runner.engine.decode_tokens == 1 + DRAFTS
    for request_id in ("a", "b"):
        scheduler.add_request(
            seams.Request(
                request_id=request_id,
                prompt_token_ids=[1] * 20,
                sampling_params=seams.SamplingParams(max_tokens=60, ignore_eos=True),
                pooling_params=None,
            )
        )
    out = 0
    for step, accepted in enumerate((0, 0, 3, 1, 2, 0, 3)):
        speculate(scheduler, accepted)
        # In the first step the prompt is computed, and nothing is drafted yet.
        out += 1 + accepted
        for request_id in ("a", "b"):
            row: Requests = runner._ledger.table.rows(runner._ledger.slots_of([request_id]))
            assert row.output_tokens.tolist() == [out], step
            # All but the latest token is computed.
            assert row.computed_tokens.tolist() == [20 + out - 1], step
            assert row.prefill_tokens.tolist() == [0], step
    assert_no_fault(runner.counters)


def test_columns_are_true_for_a_session_that_runs() -> None:
    bench = Bench(TIGHT, BENEFIT)
    bench.add("session", prompt=20, output=9, resumable=True)
    for _ in range(5):
        bench.step()
        assert_columns_true(bench)
