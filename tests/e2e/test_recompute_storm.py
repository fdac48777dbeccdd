"""A fixed overload of the KV cache ends in a few preemptions, whoever orders the queue."""

from __future__ import annotations

import math

import pytest

from batchpolicy.config import Memory, PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits, Run
from batchpolicy.preemption import Preempt, Preemption
from batchpolicy.requests import Status
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine

# Six of the twelve prompts fit at first, and four requests at their ends.
LIMITS = EngineLimits(max_num_seqs=32, max_num_batched_tokens=512, kv_blocks=256)
COST = FormulaCost(base_s=0.02, token_s=1e-4)
USEFUL_TOKENS = 12 * 1000
TIMES = Preemption(by="class").max_each


def storm(predicted: float = math.nan) -> Workload:
    return Workload(
        "storm",
        tuple(
            WorkloadRequest(
                id=f"r{i:02}", arrival_s=0.0, prompt_tokens=600, output_tokens=400,
                max_tokens=400, predicted_output_tokens=predicted,
            )
            for i in range(12)
        ),
    )  # fmt: skip


def served(name: str, preempt: Preempt, *, look_ahead: bool, predicted: float = math.nan) -> Run:
    config = PolicyConfig(
        policy=PolicySpec(name=name), preempt=preempt, memory=Memory(look_ahead=look_ahead)
    )
    run = LightEngine().replay(storm(predicted), config, LIMITS, COST, max_steps=20_000)
    assert (run.status == int(Status.FINISHED)).all()
    return run


@pytest.mark.parametrize("preempt", ["class", "benefit"])
@pytest.mark.parametrize("name", ["fcfs", "benefit"])
def test_where_admission_looks_ahead_few_are_preempted_and_none_often(
    name: str, preempt: Preempt
) -> None:
    run = served(name, preempt, look_ahead=True)
    assert run.preemptions.max() <= TIMES
    assert run.recomputed_tokens.sum() < 0.5 * USEFUL_TOKENS


@pytest.mark.parametrize("preempt", ["class", "benefit"])
@pytest.mark.parametrize("name", ["fcfs", "benefit", "shortest-remaining"])
def test_where_it_does_not_no_request_is_preempted_again_and_again(
    name: str, preempt: Preempt
) -> None:
    run = served(name, preempt, look_ahead=False, predicted=400.0)
    # As often as for others, and then once more where all have been.
    assert run.preemptions.max() <= 2 * TIMES
    assert run.recomputed_tokens.sum() < 1.25 * USEFUL_TOKENS
