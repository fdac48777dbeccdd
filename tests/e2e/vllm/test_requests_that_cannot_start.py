"""Grammars that compile, clients that leave, pauses and resets: beside the policy's order."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.interface import PauseState

from batchpolicy.config import PolicyConfig
from batchpolicy_vllm import seams
from tests.support.policies import Recorder, config_of
from tests.support.vllm_bench import Bench, answer, assert_columns_true
from tests.support.vllm_replays import BENEFIT, TIGHT, assert_no_fault

pytestmark = pytest.mark.engine

ONE_SEAT = replace(TIGHT, max_num_seqs=1)
TWO_SEATS = replace(TIGHT, max_num_seqs=2)
WORD = StructuredOutputsParams(regex="[a-z]+")

both_benches = pytest.mark.parametrize(
    ("base", "in_flight"),
    [(seams.Scheduler, 1), (seams.AsyncScheduler, 2)],
    ids=["sync", "async"],
)
# Before 0.30 a grammar that does not compile brings the engine down, with and without us.
ends_for_its_grammar = pytest.mark.skipif(
    "grammar_compile_error_reqs" not in inspect.getsource(seams.Scheduler.__init__),
    reason="this vLLM does not end requests for their grammar",
)


class AnyTokens:
    """A grammar that accepts all."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


def compiled(request: Any, grammar: object) -> None:
    """The compiler of a request's grammar is done."""
    request.structured_output_request.grammar = grammar


@both_benches
def test_a_request_whose_grammar_compiles_is_not_ranked_and_holds_nobody_up(
    base: type, in_flight: int
) -> None:
    policy = Recorder()
    bench = Bench(TWO_SEATS, config_of(policy), base=base, in_flight=in_flight)
    word = bench.add("word", priority=-5, structured=WORD)
    others = [f"r{i}" for i in range(6)]
    for name in others:
        bench.add(name, output=3)
    bench.step(4)
    assert "word" in bench.waiting
    assert all("word" not in ids for ids in policy.named("benefit"))
    assert not bench.row("word").ready[0]
    compiled(word, AnyTokens())
    # The most urgent of those that can start, whatever runs: it displaces.
    assert "word" in bench.step()
    assert bench.row("word").ready[0]
    bench.drain()
    assert set(bench.ended) == {"word", *others}
    assert bench.answers["word"] == answer(4, 4)
    assert_no_fault(bench.counters)


@ends_for_its_grammar
@pytest.mark.parametrize("config", [None, BENEFIT], ids=["stock", "benefit"])
def test_a_grammar_that_does_not_compile_ends_its_request_as_the_engine_would(
    config: PolicyConfig | None,
) -> None:
    bench = Bench(TWO_SEATS, config)
    word = bench.add("word", structured=WORD)
    bench.add("other", output=8)
    bench.step(2)
    assert bench.ended == {}
    compiled(word, RuntimeError("no such grammar"))
    bench.step()
    assert bench.ended == {"word": "error"}
    bench.drain()
    assert bench.answers == {"word": [], "other": answer(8, 8)}
    if config is not None:
        assert len(bench.driver.runner._ledger.table) == 0


@ends_for_its_grammar
def test_a_failed_grammar_alone_in_the_engine_ends_too() -> None:
    bench = Bench(TWO_SEATS, BENEFIT)
    compiled(bench.add("word", structured=WORD), RuntimeError("no such grammar"))
    bench.drain()
    assert bench.ended == {"word": "error"}
    assert_no_fault(bench.counters)


@both_benches
def test_clients_may_leave_from_every_state(base: type, in_flight: int) -> None:
    bench = Bench(ONE_SEAT, BENEFIT, base=base, in_flight=in_flight)
    bench.add("low", priority=10, output=40)
    bench.step(3)
    bench.add("urgent", priority=0, output=40)
    bench.add("queued", priority=5, output=40)
    bench.add("word", priority=0, structured=WORD)
    bench.step()
    assert bench.running == ["urgent"]
    assert bench.preempted == ["low"]
    bench.add("last", priority=7, output=5)
    # Preempted, running, waiting, blocked, and one that nobody knows.
    bench.abort("low", "urgent", "queued", "word", "stranger")
    bench.step()
    assert bench.running == ["last"]
    assert_columns_true(bench)
    bench.drain()
    assert bench.answers["last"] == answer(5, 5)
    assert bench.free_blocks == TIGHT.kv_blocks
    assert len(bench.driver.runner._ledger.table) == 0
    assert_no_fault(bench.counters)


def test_all_requests_may_be_ended_at_once() -> None:
    bench = Bench(TWO_SEATS, BENEFIT)
    for i in range(5):
        bench.add(f"r{i}", output=9)
    bench.step(2)
    bench.scheduler.finish_requests(None, seams.RequestStatus.FINISHED_ABORTED)
    bench.step()
    assert not bench.scheduler.has_requests()
    assert len(bench.driver.runner._ledger.table) == 0


@pytest.mark.parametrize(
    ("state", "computes"), [(PauseState.PAUSED_NEW, True), (PauseState.PAUSED_ALL, False)]
)
def test_a_paused_engine_admits_and_displaces_nobody_and_goes_on_later(
    state: PauseState, computes: bool
) -> None:
    bench = Bench(TWO_SEATS, BENEFIT)
    bench.add("low", priority=10, output=30)
    bench.step(2)
    bench.scheduler.set_pause_state(state)
    bench.add("urgent", priority=0)
    bench.add("second", priority=0)
    bench.step(4)
    assert bench.plans[2:] == [{"low": 1} if computes else {}] * 4
    assert_columns_true(bench)
    bench.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert {"urgent", "second"} <= set(bench.step())
    assert bench.preempted == ["low"]
    bench.drain()
    assert bench.answers["low"] == answer(30, 30)
    assert_no_fault(bench.counters)


@both_benches
def test_a_reset_of_the_prefix_cache_takes_every_seat_and_the_books_follow(
    base: type, in_flight: int
) -> None:
    policy = Recorder()
    limits = replace(TIGHT, prefix_cache=True)
    bench = Bench(limits, config_of(policy), base=base, in_flight=in_flight)
    for i in range(3):
        bench.add(f"r{i}", prompt=40, output=12)
    bench.step(6)
    assert bench.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert bench.free_blocks == limits.kv_blocks
    # All is computed again, and a step has tokens for one whole prompt and part of another.
    assert list(bench.step()) == ["r0", "r1"]
    assert_columns_true(bench)
    assert [set(ids) for ids in policy.named("preempted")] == [{"r0", "r1", "r2"}]
    bench.drain()
    assert set(bench.ended) == {"r0", "r1", "r2"}
    assert all(bench.answers[i] == answer(12, 12) for i in bench.ended)
    assert_no_fault(bench.counters)


def test_a_client_may_leave_between_a_reset_and_the_next_step() -> None:
    bench = Bench(TIGHT, BENEFIT)
    bench.add("a", output=9)
    bench.add("b", output=9)
    bench.step(3)
    bench.scheduler.reset_prefix_cache(reset_running_requests=True)
    bench.abort("a")
    bench.drain()
    assert bench.answers["b"] == answer(9, 9)
    assert_no_fault(bench.counters)


def test_a_refused_reset_changes_nothing() -> None:
    bench = Bench(replace(TIGHT, prefix_cache=True), BENEFIT)
    bench.add("a", output=9)
    bench.step(2)
    assert not bench.scheduler.reset_prefix_cache()
    assert bench.running == ["a"]
    bench.drain()
    assert bench.preempted == []
