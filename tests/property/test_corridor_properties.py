"""Counters of backlogged tenants stay in the corridor, whatever order is inside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policies.benefit import Benefit
from batchpolicy.policy import Ranking, Step
from batchpolicy.requests import FloatArray, Requests
from tests.support.mini_engine import Job, MiniEngine

TENANTS = "abc"


class Watched(Benefit):
    """Notes the gap between the counters of tenants that wait, as often as it is asked."""

    _gaps: list[float] = PrivateAttr(default_factory=lambda: [0.0])

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        self._gaps.append(float(np.ptp(self.fairness.served(waiting))))
        return super().rank(waiting, step)


class RichGetRicher(Watched):
    """The tenant that was served most comes first: what fairness has to stand."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return self.fairness.served(requests)


class LatestFirst(Watched):
    """The last to come is the first to go."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.seq.astype(np.float64)


class LargestFirst(Watched):
    """What is charged most comes first."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.prompt_tokens.astype(np.float64)


@st.composite
def backlogs(draw: st.DrawFn, *, predicted: bool) -> list[Job]:
    jobs = []
    for i in range(draw(st.integers(3, 24))):
        outputs = draw(st.integers(1, 12))
        jobs.append(
            Job(
                f"r{i}",
                prompt=draw(st.integers(1, 20)),
                outputs=outputs,
                predicted=float(outputs) if predicted else float("nan"),
                tenant=TENANTS[draw(st.integers(0, 2))],
                weight=1.0,
                arrives=draw(st.sampled_from([0, 0, 0, 5, 9])),
            )
        )
    return jobs


def largest_gap(policy: Watched, jobs: list[Job], seats: int) -> float:
    engine = MiniEngine(policy, seats=seats, budget=200, blocks=1000, preempt="never")
    engine.run(jobs)
    return max(engine.runner.policy._gaps)  # type: ignore[attr-defined]


@pytest.mark.parametrize("inner", [RichGetRicher, LatestFirst, LargestFirst])
@given(st.data(), st.integers(1, 4), st.sampled_from([1.0, 15.0, 60.0]))
@settings(max_examples=80, deadline=None)
def test_the_gap_is_at_most_the_corridor_and_the_largest_charge_where_output_is_predicted(
    inner: type[Watched], data: st.DataObject, seats: int, corridor: float
) -> None:
    jobs = data.draw(backlogs(predicted=True))
    policy = inner(corridor_tokens=corridor)
    largest = max(job.prompt + 2.0 * job.outputs for job in jobs)
    assert largest_gap(policy, jobs, seats) <= corridor + largest


@pytest.mark.parametrize("inner", [RichGetRicher, LatestFirst, LargestFirst])
@given(st.data(), st.integers(1, 4), st.sampled_from([1.0, 15.0, 60.0]))
@settings(max_examples=80, deadline=None)
def test_without_prediction_what_runs_of_a_tenant_may_put_out_comes_on_top(
    inner: type[Watched], data: st.DataObject, seats: int, corridor: float
) -> None:
    jobs = data.draw(backlogs(predicted=False))
    policy = inner(corridor_tokens=corridor)
    prompt, outputs = max(j.prompt for j in jobs), max(j.outputs for j in jobs)
    assert largest_gap(policy, jobs, seats) <= corridor + prompt + 2.0 * seats * outputs


def test_without_a_corridor_the_same_order_leaves_it() -> None:
    jobs = [
        Job(f"r{i}", prompt=20, outputs=4, predicted=4.0, tenant="ab"[i % 2]) for i in range(20)
    ]
    assert largest_gap(RichGetRicher(), jobs, 1) > 15.0 + 28.0
