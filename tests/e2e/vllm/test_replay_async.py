"""Replays with two steps in flight: each is planned while the one before it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_vllm import seams
from batchpolicy_vllm.replay import VllmReplay
from tests.support.vllm_replays import (
    BENEFIT,
    COST,
    EVERY_LIMITS,
    TIGHT,
    Served,
    assert_no_fault,
    free_blocks,
    random_workload,
    seeds,
    serve,
)

pytestmark = pytest.mark.engine

# 30 prompt tokens cost 10 + 3 ms, a decode 10 + 0.1 ms.
PREFILL_S, DECODE_S = 0.013, 0.0101


def one(
    request_id: str, output: int, *, arrival_s: float = 0.0, longest: int = 0
) -> WorkloadRequest:
    """30 prompt tokens and so many more; vLLM knows the end in advance unless ``longest``."""
    return WorkloadRequest(
        id=request_id,
        arrival_s=arrival_s,
        prompt_tokens=30,
        output_tokens=output,
        max_tokens=longest or output,
    )


def replay(
    *requests: WorkloadRequest, limits: EngineLimits = TIGHT, in_flight: int = 2
) -> tuple[Run, list[StepRecord]]:
    steps: list[StepRecord] = []
    limits = replace(limits, async_scheduling=in_flight == 2)
    run = VllmReplay().replay(Workload("w", requests), None, limits, COST, observer=steps.append)
    return run, steps


def served(seed: int, limits: EngineLimits, config: PolicyConfig | None) -> Served:
    base = seams.AsyncScheduler
    return serve(random_workload(seed), limits, config, base=base, asynchronous=True)


both = pytest.mark.parametrize("config", [None, BENEFIT], ids=["stock", "benefit"])


@both
@pytest.mark.parametrize("seed", seeds(30))
def test_every_request_ends_with_its_tokens_and_no_block_is_lost(
    seed: int, config: PolicyConfig | None
) -> None:
    limits = EVERY_LIMITS[seed % len(EVERY_LIMITS)]
    found = served(seed, limits, config)
    for row, request in enumerate(found.run.workload.requests):
        if found.run.status[row] == Status.FINISHED:
            wanted = min(request.output_tokens, request.max_tokens)
            assert found.run.output_tokens[row] == wanted
        else:
            assert found.run.status[row] == Status.ABORTED
    assert free_blocks(found.scheduler) == limits.kv_blocks
    assert_no_fault(found.run.counters)


@both
@pytest.mark.parametrize("seed", seeds(30))
def test_all_work_is_the_request_what_was_recomputed_and_a_step_after_a_surprising_end(
    seed: int, config: PolicyConfig | None
) -> None:
    found = served(seed, TIGHT, config)
    work: Counter[str] = Counter()
    for step in found.steps:
        work.update(step.tokens)
    for row, request in enumerate(found.run.workload.requests):
        if found.run.status[row] == Status.FINISHED:
            once = request.prompt_tokens + found.run.output_tokens[row] - 1
            rest = work[request.id] - once - found.run.recomputed_tokens[row]
            # Where max_tokens says that a token is the last one, vLLM knows in advance.
            known = request.output_tokens >= request.max_tokens
            assert rest in ((0,) if known else (0, 1)), request.id


@both
def test_the_same_replay_has_the_same_digest_and_another_one_than_without_overlap(
    config: PolicyConfig | None,
) -> None:
    engine, overlapped = VllmReplay(), replace(TIGHT, async_scheduling=True)
    first, second, without = (
        engine.replay(random_workload(11), config, limits, COST).digest()
        for limits in (overlapped, overlapped, TIGHT)
    )
    assert first == second != without


def test_steps_follow_each_other_without_a_gap_and_tokens_come_as_each_ends() -> None:
    run, steps = replay(one("a", 3, arrival_s=5.0))
    computing = [(step.start_s, step.duration_s) for step in steps if step.tokens]
    assert computing == [
        pytest.approx((5.0, PREFILL_S)),
        pytest.approx((5.0 + PREFILL_S, DECODE_S)),
        pytest.approx((5.0 + PREFILL_S + DECODE_S, DECODE_S)),
    ]
    assert run.first_token_s[0] == pytest.approx(5.0 + PREFILL_S)
    assert run.finished_s[0] == pytest.approx(5.0 + PREFILL_S + 2 * DECODE_S)
    assert run.longest_gap_s[0] == pytest.approx(DECODE_S)


def test_a_seat_is_free_one_step_late_when_the_end_comes_as_a_surprise() -> None:
    pair = one("a", 3, longest=9), one("b", 1)
    limits = replace(TIGHT, max_num_seqs=1)
    end_s = PREFILL_S + 2 * DECODE_S
    run, steps = replay(*pair, limits=limits)
    # A fourth step for a was under way, whose token nobody gets.
    assert [list(step.tokens) for step in steps if step.tokens] == [["a"]] * 4 + [["b"]]
    assert run.output_tokens.tolist() == [3, 1]
    assert run.finished_s.tolist() == pytest.approx([end_s, end_s + DECODE_S + PREFILL_S])
    run, _ = replay(*pair, limits=limits, in_flight=1)
    assert run.finished_s.tolist() == pytest.approx([end_s, end_s + PREFILL_S])


@pytest.mark.parametrize(("in_flight", "steps_before"), [(1, 1), (2, 2)])
def test_who_comes_while_a_step_runs_is_in_the_one_after_the_next(
    in_flight: int, steps_before: int
) -> None:
    # The second step runs from 13 to 23.1 ms.
    _, steps = replay(one("a", 9), one("b", 2, arrival_s=0.015), in_flight=in_flight)
    starts = [step.start_s for step in steps if "b" in step.tokens]
    assert starts[0] == pytest.approx(PREFILL_S + steps_before * DECODE_S)


def test_what_a_preempted_request_had_in_flight_is_counted_once_and_recomputed() -> None:
    # b gives way when a outgrows its two blocks of 16; the last of b's 32 computed tokens is in
    # the step in flight, and the token of that step reaches b all the same.
    run, _ = replay(one("a", 10), one("b", 10), limits=replace(TIGHT, kv_blocks=4))
    assert run.preemptions.tolist() == [0, 1]
    assert run.output_tokens.tolist() == [10, 10]
    assert run.recomputed_tokens.tolist() == [0, 32]
