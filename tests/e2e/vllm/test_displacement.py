"""Running requests that give way on vLLM's own scheduler: whom, how many, and back again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchpolicy.engine import EngineLimits
from batchpolicy_vllm import seams
from tests.support.vllm_bench import Bench, answer, assert_columns_true, own_tokens
from tests.support.vllm_replays import GREEDY, assert_no_fault

pytestmark = pytest.mark.engine

SEATS = EngineLimits(
    max_num_seqs=4,
    max_num_batched_tokens=512,
    kv_blocks=400,
    kv_block_tokens=16,
    max_model_len=2048,
)
BLOCKS = replace(SEATS, max_num_seqs=16, kv_blocks=256)


def finish(bench: Bench) -> None:
    """Every answer is whole, no block is held, nothing failed."""
    bench.drain()
    for request_id, tokens in bench.answers.items():
        assert tokens == answer(len(tokens), len(tokens)), request_id
    assert bench.free_blocks == bench.limits.kv_blocks
    assert_no_fault(bench.counters)


def test_an_urgent_request_gets_a_seat_in_the_next_step_for_exactly_one_victim() -> None:
    bench = Bench(SEATS, GREEDY)
    for i in range(4):
        bench.add(f"low{i}", prompt=64, output=60, priority=10)
    bench.step(5)
    bench.add("urgent", prompt=64, output=20, priority=0)
    assert "urgent" in bench.step()
    # Of equals the one that came last has the least to lose.
    assert bench.preempted == ["low3"]
    assert set(bench.running) == {"low0", "low1", "low2", "urgent"}
    assert_columns_true(bench)
    bench.add("urgent2", prompt=64, output=20, priority=0)
    assert "urgent2" in bench.step()
    assert bench.preempted == ["low3", "low2"]
    finish(bench)
    assert [len(tokens) for tokens in bench.answers.values()] == [60, 60, 60, 60, 20, 20]
    assert bench.counters["displaced"] == 2


def test_equals_and_the_less_urgent_never_displace() -> None:
    bench = Bench(SEATS, GREEDY)
    for i in range(4):
        bench.add(f"low{i}", prompt=64, output=40, priority=5)
    bench.step(3)
    bench.add("equal", priority=5, ttft_slo_s=0.001)
    bench.add("worse", priority=6, ttft_slo_s=0.001)
    finish(bench)
    assert bench.preempted == []


def test_blocks_for_an_urgent_request_come_from_as_few_victims_as_will_do() -> None:
    bench = Bench(BLOCKS, GREEDY)
    for i in range(8):
        bench.add(f"low{i}", prompt=440, output=70, priority=10)
    # Seven steps of 512 tokens for 8 prompts of 440; then all decode, with 29 blocks each
    # from their 449th token on.
    bench.step(18)
    assert bench.free_blocks == 256 - 8 * 29
    # 24 are free, 57 are wanted.
    bench.add("urgent", prompt=900, output=20, priority=0)
    assert "urgent" in bench.step()
    assert len(bench.preempted) == 2
    finish(bench)
    assert [len(bench.answers[f"low{i}"]) for i in range(8)] == [70] * 8
    assert len(bench.answers["urgent"]) == 20


def test_nobody_is_displaced_when_even_all_of_them_would_free_too_little() -> None:
    bench = Bench(replace(BLOCKS, kv_blocks=80), GREEDY)
    bench.add("holder", prompt=600, output=40, priority=0)
    bench.step(2)
    bench.add("low", prompt=64, output=40, priority=10)
    bench.step(2)
    # 38 and 5 blocks are held; 70 are wanted, and only the 5 are of a worse class.
    bench.add("large", prompt=1100, output=4, priority=5)
    bench.step(10)
    assert bench.preempted == []
    assert set(bench.running) == {"holder", "low"}
    finish(bench)


def test_a_victim_frees_only_what_it_shares_with_nobody() -> None:
    # 8 blocks of prefix for all, and of their own 2, 2 and 1: 13 of 20 are held.
    bench = Bench(replace(BLOCKS, kv_blocks=20, prefix_cache=True), GREEDY)
    prefix = own_tokens(500, 128)
    for i in range(2):
        bench.add(f"low{i}", prompt=[*prefix, *own_tokens(i, 20)], output=8, priority=10)
        bench.step()
    bench.add("anchor", prompt=[*prefix, *own_tokens(9, 10)], output=30, priority=0)
    bench.step()
    assert bench.free_blocks == 7
    bench.add("urgent", prompt=160, output=4, priority=0)
    assert "urgent" in bench.step()
    # It wants 10, and a victim gives 2.
    assert sorted(bench.preempted) == ["low0", "low1"]
    finish(bench)


def test_an_urgent_request_whose_prefix_is_held_already_displaces_nobody() -> None:
    bench = Bench(replace(BLOCKS, kv_blocks=20, prefix_cache=True), GREEDY)
    prefix = own_tokens(500, 128)
    bench.add("low0", prompt=[*prefix, *own_tokens(0, 20)], output=30, priority=10)
    bench.step()
    bench.add("low1", prompt=100, output=8, priority=10)
    bench.step()
    # 10 and 7 blocks are held. The prompt takes 9, of which low0 holds 8.
    assert bench.free_blocks == 3
    bench.add("urgent", prompt=[*prefix, *own_tokens(2, 10)], output=4, priority=0)
    assert bench.step()["urgent"] == 10
    assert bench.preempted == []
    finish(bench)


def test_a_displaced_request_finds_its_blocks_in_the_prefix_cache() -> None:
    bench = Bench(replace(SEATS, max_num_seqs=1, prefix_cache=True), GREEDY)
    bench.add("low", prompt=100, output=30, priority=10)
    bench.step(10)
    bench.add("urgent", prompt=16, output=2, priority=0)
    bench.step(2)
    # 109 tokens are known when it comes back, of which 6 blocks of 16 are cached.
    assert bench.step() == {"low": 109 + 1 - 96}
    finish(bench)


def test_when_running_requests_grow_out_of_the_pool_the_least_urgent_goes_first() -> None:
    bench = Bench(replace(BLOCKS, kv_blocks=12), GREEDY)
    bench.add("low", prompt=60, output=60, priority=10)
    bench.add("high", prompt=60, output=60, priority=0)
    bench.add("middle", prompt=60, output=60, priority=5)
    bench.step(6)
    assert bench.preempted == ["low"]
    finish(bench)
    assert bench.preempted.count("high") == 0


def test_the_watermark_is_for_admission_and_takes_no_seat_from_who_runs() -> None:
    # 22 of 24 blocks at the end, with 4 to be kept free for running requests.
    limits = replace(BLOCKS, kv_blocks=24)
    bench = Bench(limits, GREEDY)
    bench.scheduler.kv_cache_manager.watermark_blocks = 4
    bench.add("large", prompt=330, output=20)
    bench.step(3)
    bench.add("next", prompt=30, output=4)
    finish(bench)
    assert bench.preempted == []


def test_with_steps_in_flight_tokens_under_way_reach_the_displaced_request_once() -> None:
    bench = Bench(replace(SEATS, max_num_seqs=1), GREEDY, base=seams.AsyncScheduler, in_flight=2)
    bench.add("low", prompt=20, output=30, priority=10)
    bench.step(6)
    before = len(bench.answers["low"])
    bench.add("urgent", prompt=20, output=5, priority=0)
    assert list(bench.step()) == ["urgent"]
    assert bench.preempted == ["low"]
    # The step in flight had a token of it, which still came.
    assert len(bench.answers["low"]) == before + 1
    assert_columns_true(bench)
    finish(bench)
    assert len(bench.answers["low"]) == 30


def test_a_request_that_ends_with_its_token_in_flight_while_displaced_stays_ended() -> None:
    bench = Bench(replace(SEATS, max_num_seqs=1), GREEDY, base=seams.AsyncScheduler, in_flight=2)
    bench.add("low", prompt=20, output=6, max_tokens=40, priority=10)
    bench.step(6)
    # Its sixth and last token is in flight; vLLM cannot know that it is the last.
    bench.add("urgent", prompt=20, output=3, priority=0)
    bench.step()
    assert bench.ended == {"low": "stop"}
    bench.drain()
    assert bench.answers["low"] == answer(6, 40)
    assert len(bench.driver.runner._ledger.table) == 0
    assert_no_fault(bench.counters)
