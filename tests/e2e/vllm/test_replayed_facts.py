"""What the requests of a workload say, as a policy sees it in a replay."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policy import Policy, Step
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.workload import Workload, WorkloadRequest
from tests.support.policies import config_of
from tests.support.vllm_replays import AMPLE, assert_no_fault, serve

pytestmark = pytest.mark.engine

COLUMNS = (
    "session",
    "turn",
    "deadline_s",
    "queue_ttl_s",
    "predicted_output_tokens",
    "ttft_slo_s",
    "weight",
    "lora",
)


class Onlooker(Policy):
    """Notes the columns of each request when it first sees it."""

    _seen: dict[str, dict[str, float]] = PrivateAttr(default_factory=dict)

    @property
    def seen(self) -> dict[str, dict[str, float]]:
        return self._seen

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        for i, request_id in enumerate(requests.request_id):
            row = {name: float(getattr(requests, name)[i]) for name in COLUMNS}
            self._seen.setdefault(request_id, row)
        return -requests.arrival_s


def request(request_id: str, arrival_s: float, **facts: Any) -> WorkloadRequest:
    lengths = {"prompt_tokens": 8, "output_tokens": 2, "max_tokens": 4}
    return WorkloadRequest(id=request_id, arrival_s=arrival_s, **lengths, **facts)


def test_a_policy_sees_what_the_workload_says() -> None:
    # 0.6 + (1.7 - 0.6) is not 1.7, but the deadlines are equal.
    given = (
        request("a", 0.0, session="s", deadline_s=1.7, queue_ttl_s=7.0, weight=2.0, lora="l"),
        request("b", 0.6, session="s", deadline_s=1.7, predicted_output_tokens=3.5),
        request("c", 0.7, session="t", deadline_s=0.2, ttft_slo_s=0.3, lora="m"),
        request("d", 0.8),
    )
    onlooker = Onlooker()
    served = serve(Workload("w", given), AMPLE, config_of(onlooker))
    assert_no_fault(served.run.counters)
    assert "bad_metadata" not in served.run.counters
    none = math.inf, math.inf, math.nan, math.inf, 1.0, -1.0
    expected = {
        "a": (0.0, 0.0, 1.7, 7.0, math.nan, math.inf, 2.0, 0.0),
        "b": (0.0, 1.0, 1.7, math.inf, 3.5, math.inf, 1.0, -1.0),
        "c": (1.0, 0.0, 0.2, math.inf, math.nan, 0.3, 1.0, 1.0),
        "d": (-1.0, 0.0, *none),
    }
    seen = {name: tuple(row.values()) for name, row in onlooker.seen.items()}
    assert repr(seen) == repr(expected)
