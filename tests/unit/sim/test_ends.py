"""Who ends in the queue: past its time there, or too large ever to run."""

from __future__ import annotations

from typing import Any

import pytest

from batchpolicy.config import PolicyConfig, config_named
from batchpolicy.engine import EngineLimits
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from tests.unit.sim.light import LIMITS, SECOND, Served, request

EVERY_ORDER = [None, config_named("fcfs"), config_named("benefit")]
IDS = ["stock", "fcfs", "benefit"]
EXPIRED, REFUSED, FINISHED = int(Status.EXPIRED), int(Status.REFUSED), int(Status.FINISHED)


@pytest.mark.parametrize("config", EVERY_ORDER, ids=IDS)
def test_who_waits_past_its_time_ends_under_every_order(config: PolicyConfig | None) -> None:
    served = Served(
        request("a", 4, 6), request("b", 4, 2, queue_ttl_s=3.0), request("c", 4, 2),
        request("d", 4, 2, queue_ttl_s=6.0), max_num_seqs=1, config=config,
    )  # fmt: skip
    # b's time is over at 3, which the step that starts then finds, and its end tells; d's
    # is over at 6, when c starts.
    assert served.of("status") == {"a": FINISHED, "b": EXPIRED, "c": FINISHED, "d": EXPIRED}
    assert served.of("finished_s") == {"a": 6.0, "b": 4.0, "c": 8.0, "d": 7.0}
    assert served.of("output_tokens")["b"] == 0


def test_unwatched_the_time_is_kept_as_well() -> None:
    requests = (request("a", 4, 60), request("b", 4, 2, queue_ttl_s=30.5), request("c", 4, 2))
    limits = EngineLimits(
        max_num_seqs=1, max_num_batched_tokens=64, kv_blocks=100, kv_block_tokens=8
    )
    run = LightEngine().replay(Workload("w", requests), None, limits, SECOND)
    assert run.finished_s.tolist() == [60.0, 32.0, 62.0]


@pytest.mark.parametrize("config", EVERY_ORDER, ids=IDS)
def test_who_has_started_is_past_no_time(config: PolicyConfig | None) -> None:
    served = Served(request("a", 4, 6, queue_ttl_s=2.0), config=config)
    assert served.of("status") == {"a": FINISHED}


@pytest.mark.parametrize("config", EVERY_ORDER, ids=IDS)
def test_a_blocked_request_ends_in_time_though_nothing_runs(config: PolicyConfig | None) -> None:
    served = Served(request("a", 4, 6, ready_at_s=50.0, queue_ttl_s=2.0), config=config)
    assert served.of("status") == {"a": EXPIRED}
    assert served.of("finished_s") == {"a": 2.0}


@pytest.mark.parametrize("config", EVERY_ORDER, ids=IDS)
@pytest.mark.parametrize(
    ("large", "limits"),
    [
        (request("a", 900, 1, priority=-9), {}),
        (request("a", 700, 200, priority=-9), {}),
        (request("a", 200, 9, priority=-9), {"max_model_len": 200}),
        (request("a", 65, 6, priority=-9), {"chunked_prefill": False}),
        (request("a", 60, 6, priority=-9, encoder_tokens=5), {"encoder_cache_tokens": 4}),
    ],
    ids=["prompt", "whole", "model", "step", "encoder"],
)
def test_what_can_never_run_is_refused_when_it_comes_and_blocks_nobody(
    large: WorkloadRequest, limits: dict[str, Any], config: PolicyConfig | None
) -> None:
    served = Served(large, request("b", 4, 2), config=config, **limits)
    assert served.of("status") == {"a": REFUSED, "b": FINISHED}
    assert served.of("finished_s") == {"a": 1.0, "b": 2.0}
    assert served.steps[-1].free_kv_blocks == LIMITS.kv_blocks - 1


def test_a_workload_of_which_nothing_can_run_ends() -> None:
    served = Served(request("a", 900, 1), request("b", 900, 1, at=3.0))
    assert served.of("status") == {"a": REFUSED, "b": REFUSED}
    assert served.of("finished_s") == {"a": 0.0, "b": 3.0}
