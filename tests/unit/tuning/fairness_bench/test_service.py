"""Service and backlog of two tenants, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.requests import Status
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from batchpolicy_tuning.cases.trace import trace_of
from batchpolicy_tuning.fairness_bench.deliveries import Deliveries
from batchpolicy_tuning.fairness_bench.service import ServiceCourse, bound
from batchpolicy_tuning.fairness_bench.workloads import arena_like


def request(
    name: str, arrival_s: float, prompt: int, output: int, weight: float = 1.0
) -> WorkloadRequest:
    return WorkloadRequest(
        id=name,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output,
        tenant=name[0],
        weight=weight,
    )


def ran(
    requests: Sequence[WorkloadRequest],
    steps: Sequence[Mapping[str, int]],
    preempted: Mapping[int, tuple[str, ...]] | None = None,
    finished_s: Mapping[str, float] | None = None,
) -> tuple[Run, Deliveries]:
    """A run of steps of one second each, from 0 s on."""
    n = len(requests)
    ends = [(finished_s or {}).get(r.id, np.nan) for r in requests]
    none = np.zeros(n, dtype=np.int64)
    run = Run(
        workload=Workload("w", tuple(requests)),
        engine="by hand",
        policy="by hand",
        status=np.full(n, int(Status.FINISHED)),
        first_scheduled_s=np.full(n, np.nan),
        first_token_s=np.full(n, np.nan),
        finished_s=np.array(ends),
        longest_gap_s=np.zeros(n),
        output_tokens=none,
        cached_tokens=none,
        preemptions=none,
        recomputed_tokens=none,
        steps=len(steps),
        end_s=float(len(steps)),
        peak_waiting=0,
    )
    records = [
        StepRecord(
            index=i,
            start_s=float(i),
            duration_s=1.0,
            tokens=tokens,
            preempted=(preempted or {}).get(i, ()),
            running=0,
            waiting=0,
            free_kv_blocks=0,
        )
        for i, tokens in enumerate(steps)
    ]
    return run, Deliveries.of(run, records)


LAST = request("b9", 99.0, 1, 1)
"""Somebody who comes long after, so that nothing is cut off."""


def test_prompts_count_at_admission_and_output_as_it_is_delivered() -> None:
    requests = [request("a1", 0.0, 10, 3), request("b1", 0.0, 4, 1), LAST]
    # a1 takes two steps for its prompt; then three tokens come out, one a step.
    run, found = ran(requests, [{"a1": 6}, {"a1": 4, "b1": 4}, {"a1": 1}, {"a1": 1}])
    course = ServiceCourse.of(run, found)
    by_event = course.served.tolist()
    assert by_event == [
        [0.0, 0.0],  # a1 arrives
        [0.0, 0.0],  # b1
        [10.0, 0.0],  # a1 starts
        [10.0, 4.0],  # b1 starts
        [12.0, 6.0],  # both put out a token at once
        [14.0, 6.0],
        [16.0, 6.0],
        [16.0, 6.0],  # the last arrival
    ]
    assert course.backlogged.tolist()[:4] == [
        [True, False], [True, True], [False, True], [False, False]
    ]  # fmt: skip
    assert course.cumulative_gap() == 10.0


def test_the_gap_is_the_swing_while_neither_queue_is_empty() -> None:
    requests = [
        *(request(f"a{i}", 0.0, 10, 2) for i in range(3)),
        *(request(f"b{i}", 0.0, 10, 2) for i in range(2)),
        LAST,
    ]
    run, found = ran(
        requests,
        # a leads by 10 and 12, then b catches up; at the start of a2 the queue of a is empty.
        [{"a0": 10}, {"a0": 1, "a1": 10}, {"a1": 1, "b0": 10}, {"b0": 1, "a2": 10}, {"b1": 10}],
    )
    course = ServiceCourse.of(run, found)
    # While both wait a's lead goes 0, 10, 12, 22, 26 (a0 and a1 put out), 16, 16, and that
    # at the end of step 2 (a1 and b0 put out one each): 0 to 26.
    assert course.pair_gap() == 26.0


def test_a_queue_that_is_empty_for_an_instant_ends_the_stretch() -> None:
    requests = [
        request("a0", 0.0, 10, 2),
        *(request(f"b{i}", 0.0, 10, 2) for i in range(3)),
        request("a1", 1.5, 10, 2),
        LAST,
    ]
    steps = [{"b0": 10}, {"b0": 1, "a0": 10}, {"a0": 1, "b1": 10}, {"a1": 10, "b1": 1}]
    run, found = ran(requests, steps)
    course = ServiceCourse.of(run, found)
    # Both wait until a0 starts at 1 s: b leads by 0 to 12. From 1.5 s until 3 s: a0 and b0 put
    # out, b1 starts, both put out: b's lead goes 2, 2 (both put out at 2 s), 12, 12.
    assert course.pair_gap() == 12.0


def test_who_is_preempted_waits_again_and_its_prompt_counts_once() -> None:
    requests = [request("a0", 0.0, 4, 3), request("b0", 0.0, 4, 1), LAST]
    steps = [{"a0": 4}, {"b0": 4}, {"a0": 5}, {"a0": 1}]
    run, found = ran(requests, steps, preempted={1: ("a0",)})
    course = ServiceCourse.of(run, found)
    # Recomputing prompt and first token takes 5 and gives the second token.
    assert course.served[-1].tolist() == [4.0 + 3 * 2.0, 4.0 + 2.0]
    assert course.backlogged[:, 0].tolist() == [
        True, True, False, False, True, True, True, False, False, False, False
    ]  # fmt: skip


def test_who_gives_up_in_the_queue_does_not_wait_any_more() -> None:
    requests = [request("a0", 0.0, 4, 1), request("b0", 0.0, 4, 1), LAST]
    run, found = ran(requests, [{"a0": 4}], finished_s={"b0": 0.5})
    course = ServiceCourse.of(run, found)
    assert course.backlogged[-1].tolist() == [False, True]  # b9, that comes last
    assert course.backlogged[-2].tolist() == [False, False]


def test_service_and_bound_are_counted_by_weight() -> None:
    requests = [request("a0", 0.0, 8, 1, weight=4.0), request("b0", 0.0, 30, 1), LAST]
    run, found = ran(requests, [{"a0": 8}])
    assert ServiceCourse.of(run, found).served[-1].tolist() == [8 / 4 + 2 / 4, 0.0]
    # The longest prompt is 30, and 10 tokens of output cost 20; nobody weighs less than 1.
    assert bound(run, 10) == 60.0
    assert bound(run, 100) == 400.0


def test_who_never_competes_has_no_gap() -> None:
    run, found = ran([request("a0", 0.0, 8, 1), request("a1", 0.0, 8, 1)], [{"a0": 8}])
    assert ServiceCourse.of(run, found).pair_gap() == 0.0


@pytest.mark.parametrize("kv_blocks", [60, 600])
def test_tokens_come_out_as_the_trace_of_the_run_says(kv_blocks: int) -> None:
    limits = EngineLimits(max_num_seqs=20, max_num_batched_tokens=512, kv_blocks=kv_blocks)
    records: list[StepRecord] = []
    cost = FormulaCost(base_s=0.02, token_s=1e-4)
    workload = arena_like(0, 0, 0.1)
    short = Workload(
        "w",
        tuple(r for r in workload.requests if r.prompt_tokens + r.output_tokens < 500),
    )
    run = LightEngine().replay(short, None, limits, cost, observer=records.append)
    assert run.preemptions.sum() > 0 or kv_blocks > 60
    found = Deliveries.of(run, records)
    for i, course in enumerate(trace_of(run, records, limits).courses.values()):
        assert found.end_s[found.step[found.row == i]].tolist() == course.token_s
    assert np.bincount(found.admitted.row).tolist() == (1 + run.preemptions).tolist()
