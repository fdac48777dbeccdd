from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits
from batchpolicy.policies.shortest_remaining import ShortestRemaining
from batchpolicy.preemption import Preemption
from batchpolicy.requests import Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.step_cost import FormulaCost
from batchpolicy.testing import make_step
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from batchpolicy_tuning import queueing
from tests.support.rig import Rig

RUNNING = {"status": int(Status.RUNNING)}


def test_keeping_is_worth_what_is_left_and_what_would_be_computed_again() -> None:
    table = RequestTable()
    decodes = {"prompt_tokens": 100, "computed_tokens": 119, "output_tokens": 20, **RUNNING}
    table.add("decodes", predicted_output_tokens=50.0, **decodes)
    table.add("committed", predicted_output_tokens=40.0, **decodes)
    table.add("outlived", predicted_output_tokens=10.0, **decodes)
    table.add("unknown", **decodes)
    table.add("starting", prompt_tokens=100, computed_tokens=64, predicted_output_tokens=50.0)
    policy = ShortestRemaining(output_weight=2.0, recompute_weight=0.5, committed_frac=0.5)
    keep = policy.keep_benefit(table.view(), make_step())
    # 30 outputs of 2 left, and half of 119; then 36 of the prompt and 50 outputs, half of 64.
    assert keep.tolist() == [-60.0 + 59.5, np.inf, np.inf, np.inf, -136.0 + 32.0]


def test_a_running_request_gives_way_to_one_that_needs_less_than_it_has_left() -> None:
    rig = Rig(ShortestRemaining(), preempt="benefit", max_running=1)
    rig.running("long", predicted_output_tokens=40.0)
    # It has 39 left and 10 computed: 10 and 18 are less than 29, and 10 and 19 are not.
    rig.arrive("equal", predicted_output_tokens=19.0)
    assert rig.plan(seats=0).preempt == []
    rig.arrive("shorter", predicted_output_tokens=18.0)
    plan = rig.plan(seats=0)
    assert (plan.admit[0], plan.preempt) == ("shorter", ["long"])


def test_with_right_predictions_one_seat_is_served_by_the_definition() -> None:
    drawn = queueing.poisson(400, 0.8, seed=1)
    requests = tuple(
        replace(r, predicted_output_tokens=float(r.output_tokens)) for r in drawn.requests
    )
    # Starting again takes no step, and is to cost nothing.
    params = {"output_weight": 1000.0, "recompute_weight": 0.0, "committed_frac": 1.0}
    run = LightEngine().replay(
        Workload("M/M/1", requests),
        PolicyConfig(
            policy=PolicySpec(name="shortest-remaining", params=params),
            preempt=Preemption(by="benefit", max_each=1000),
        ),
        EngineLimits(max_num_seqs=1, max_num_batched_tokens=100_000, kv_blocks=100_000),
        FormulaCost(base_s=queueing.STEP_S),
    )
    assert run.preemptions.sum() > 50
    assert queueing.sojourn_s(run) == pytest.approx(mean_response_s(requests), rel=1e-9)


def mean_response_s(requests: tuple[WorkloadRequest, ...]) -> float:
    """Of shortest remaining processing time: in each step the least that is left goes on."""
    left: list[list[float]] = []
    now_s, total_s, coming = 0.0, 0.0, list(requests)
    while coming or left:
        if not left:
            now_s = max(now_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now_s:
            r = coming.pop(0)
            left.append([r.output_tokens, r.arrival_s])
        now_s += queueing.STEP_S
        least = min(left)
        least[0] -= 1
        if least[0] == 0:
            left.remove(least)
            total_s += now_s - least[1]
    return total_s / len(requests)
