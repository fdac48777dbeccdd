"""What holds for every replay: same bytes, every answer whole, no block lost, limits named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits, StepRecord
from batchpolicy.errors import WorkloadError
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_vllm import seams
from batchpolicy_vllm.replay import VllmReplay
from tests.support.vllm_replays import (
    BENEFIT,
    COST,
    EVERY_LIMITS,
    FCFS,
    STRICT_PRIORITY,
    TIGHT,
    TIGHT_CACHED,
    assert_no_fault,
    free_blocks,
    random_workload,
    seeds,
    serve,
)

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[3]
PATH = (ROOT, ROOT / "adapters")

DIGEST = """
from batchpolicy_vllm.replay import VllmReplay
from tests.support.vllm_replays import BENEFIT, COST, TIGHT_CACHED, random_workload
print("DIGEST", VllmReplay().replay(random_workload(11), BENEFIT, TIGHT_CACHED, COST).digest())
"""


def one(request_id: str, prompt: int, output: int, **facts: float) -> WorkloadRequest:
    given = {"arrival_s": 0.0, "max_tokens": output} | facts
    return WorkloadRequest(
        id=request_id,
        prompt_tokens=prompt,
        output_tokens=output,
        **given,  # type: ignore[arg-type]
    )


def test_the_same_replay_has_the_same_digest_in_another_process_and_twice_in_this_one() -> None:
    engine = VllmReplay()
    first, second = (
        engine.replay(random_workload(11), BENEFIT, TIGHT_CACHED, COST) for _ in range(2)
    )
    assert first.preemptions.sum() > 0
    assert first.digest() == second.digest()
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *map(str, PATH)])
    environment = os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", DIGEST],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert f"DIGEST {first.digest()}" in done.stdout.splitlines(), done.stderr


def test_another_workload_has_another_digest() -> None:
    engine = VllmReplay()
    digests = {
        engine.replay(random_workload(seed), FCFS, TIGHT, COST).digest() for seed in (11, 12)
    }
    assert len(digests) == 2


@pytest.mark.parametrize("config", [None, FCFS, BENEFIT], ids=["stock", "fcfs", "benefit"])
@pytest.mark.parametrize("seed", seeds(30))
def test_every_request_ends_with_its_tokens_and_no_block_is_lost(
    seed: int, config: PolicyConfig | None
) -> None:
    workload, limits = random_workload(seed), EVERY_LIMITS[seed % len(EVERY_LIMITS)]
    served = serve(workload, limits, config)
    for row, request in enumerate(workload.requests):
        status, tokens = served.run.status[row], served.run.output_tokens[row]
        if status == Status.FINISHED:
            assert tokens == min(request.output_tokens, request.max_tokens)
        else:
            assert status == Status.ABORTED
            assert served.run.finished_s[row] >= request.cancel_at_s
    assert free_blocks(served.scheduler) == limits.kv_blocks
    assert_no_fault(served.run.counters)


@pytest.mark.parametrize("config", [None, BENEFIT], ids=["stock", "benefit"])
@pytest.mark.parametrize("seed", seeds(40))
def test_all_work_is_the_request_itself_and_what_was_recomputed(
    seed: int, config: PolicyConfig | None
) -> None:
    served = serve(random_workload(seed), TIGHT, config)
    work: Counter[str] = Counter()
    for step in served.steps:
        work.update(step.tokens)
    for row, request in enumerate(served.run.workload.requests):
        if served.run.status[row] == Status.FINISHED:
            # The last token comes out and is never computed.
            once = request.prompt_tokens + served.run.output_tokens[row] - 1
            assert work[request.id] == once + served.run.recomputed_tokens[row], request.id


def test_the_tokens_that_a_preempted_request_computes_again_are_counted() -> None:
    # Two blocks of 16 each for a start. With 32 tokens computed and 3 out, a needs a third
    # block of 4: b loses its 32 and waits for a's end, then computes them and a new one.
    workload = Workload("two", (one("a", 30, 10), one("b", 30, 10)))
    limits = replace(TIGHT, kv_blocks=4)
    run = VllmReplay().replay(workload, None, limits, COST)
    assert run.preemptions.tolist() == [0, 1]
    assert run.recomputed_tokens.tolist() == [0, 32]
    assert run.output_tokens.tolist() == [10, 10]


def test_times_follow_the_cost_of_each_step() -> None:
    # 30 prompt tokens cost 10 + 3 ms, each decode 10 + 0.1 ms.
    run = VllmReplay().replay(
        Workload("one", (one("a", 30, 3, arrival_s=5.0),)), None, TIGHT, COST
    )
    assert run.first_scheduled_s[0] == 5.0
    assert run.first_token_s[0] == pytest.approx(5.013)
    assert run.longest_gap_s[0] == pytest.approx(0.0101)
    assert run.finished_s[0] == pytest.approx(5.0332)
    assert run.steps == 4, "three that compute and one that tells of the end"


def test_a_shared_prefix_is_found_in_the_cache_and_not_computed_twice() -> None:
    shared = {"prefix_id": "p", "prefix_tokens": 40}
    pair = (one("a", 48, 2, **shared), one("b", 48, 2, arrival_s=1.0, **shared))  # type: ignore[arg-type]
    steps: list[StepRecord] = []
    run = VllmReplay().replay(
        Workload("pair", pair), BENEFIT, TIGHT_CACHED, COST, observer=steps.append
    )
    # Whole blocks of 16 are shared: 32 of the 40.
    assert run.cached_tokens.tolist() == [0, 32]
    assert [step.tokens["b"] for step in steps if "b" in step.tokens] == [16, 1]


def test_a_step_that_only_preempts_is_not_taken_for_a_standstill() -> None:
    # Two blocks of 16 each for a start. With 32 tokens computed, a needs a third block of 4;
    # it stands first and is the less urgent, so that vLLM's priority order gives it up and,
    # up to 0.32, computes nothing in this step. 0.33 goes on with the next one.
    pair = (one("a", 30, 10, priority=10), one("b", 30, 10, arrival_s=0.001))
    steps: list[StepRecord] = []
    run = VllmReplay().replay(
        Workload("pair", pair),
        STRICT_PRIORITY,
        replace(TIGHT, kv_blocks=4),
        COST,
        observer=steps.append,
    )
    preempted = [(dict(step.tokens), step.preempted) for step in steps if step.preempted]
    assert preempted in ([({}, ("a",))], [({"b": 1}, ("a",))])
    assert run.status.tolist() == [Status.FINISHED, Status.FINISHED]


def test_a_workload_that_takes_too_many_steps_is_given_up_with_a_reason() -> None:
    with pytest.raises(WorkloadError, match=r"20 steps .* \d+ of 20 requests are left"):
        VllmReplay().replay(random_workload(1), BENEFIT, TIGHT, COST, max_steps=20)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (replace(TIGHT, kv_blocks=4), "64 tokens"),
        (replace(TIGHT, max_model_len=100, kv_blocks=40), "100 tokens"),
    ],
)
def test_requests_that_can_never_run_are_named_before_anything_is_served(
    limits: EngineLimits, most: str
) -> None:
    workload = Workload("mixed", (one("small", 10, 5), one("large", 90, 50), one("long", 8, 150)))
    with pytest.raises(WorkloadError) as error:
        VllmReplay().replay(workload, FCFS, limits, COST)
    said = str(error.value)
    assert most in said
    assert "'large': 90 prompt + 50 output" in said
    assert "'long': 8 prompt + 150 output" in said
    assert "small" not in said


def test_limits_that_vllm_does_not_keep_are_refused_by_name() -> None:
    limits = replace(TIGHT, max_waiting=4, encoder_cache_tokens=100)
    with pytest.raises(WorkloadError, match="no limit max_waiting and encoder_cache_tokens"):
        VllmReplay().replay(Workload("w", (one("a", 10, 5),)), None, limits, COST)


def test_a_whole_prompt_or_none_of_it_is_computed_without_chunked_prefill() -> None:
    # Two prompts of 40 tokens do not fit into one step of 64.
    limits = replace(
        TIGHT, chunked_prefill=False, kv_blocks=100, max_num_batched_tokens=64, max_model_len=64
    )
    seen: list[dict[str, int]] = []
    workload = Workload("w", (one("a", 40, 2), one("b", 40, 2)))
    VllmReplay().replay(
        workload, None, limits, COST, observer=lambda step: seen.append(dict(step.tokens))
    )
    assert seen[:2] == [{"a": 40}, {"a": 1, "b": 40}]


@pytest.mark.skipif(not seams.has_watermark(), reason="this vLLM has no watermark")
def test_a_watermark_keeps_blocks_from_who_wants_to_start() -> None:
    # Of 8 blocks half are kept: a takes 2 of the others, so that b's 3 are too many.
    limits = replace(TIGHT, watermark=0.5, kv_blocks=8, kv_block_tokens=16, max_num_seqs=4)
    workload = Workload("w", (one("a", 30, 20), one("b", 40, 2)))
    run = VllmReplay().replay(workload, None, limits, COST)
    assert run.first_scheduled_s[1] >= run.finished_s[0]


def test_a_request_that_fills_the_pool_to_the_last_token_is_served() -> None:
    run = VllmReplay().replay(Workload("full", (one("a", 60, 5),)), BENEFIT, TIGHT, COST)
    whole = replace(TIGHT, kv_blocks=4)
    run = VllmReplay().replay(Workload("full", (one("a", 60, 4),)), BENEFIT, whole, COST)
    assert run.status.tolist() == [Status.FINISHED]
    assert run.preemptions.tolist() == [0]
