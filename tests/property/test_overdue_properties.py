"""The bounds on waiting, under an order that is as unfair as can be."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from batchpolicy.config import Bounds, Queue
from batchpolicy.policy import Policy, Step
from batchpolicy.requests import FloatArray, Requests
from tests.support.mini_engine import STEP_S, Job, MiniEngine

MAX_WAIT_S = 2.0


class LatestFirst(Policy):
    """The order most unlike that of arrival."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.seq.astype(np.float64)


class Watched(MiniEngine):
    """Notes of each admission who was passed by it though overdue."""

    passed: list[tuple[Job, Job]]
    waits: Counter[str]
    """Admissions of others since a request was overdue, and the first such of its tenant."""

    def __init__(self, turns: str, **shape: object) -> None:
        bounds = Bounds(max_wait_s=MAX_WAIT_S, turns=turns)  # type: ignore[arg-type]
        super().__init__(LatestFirst(), preempt="never", bounds=bounds, **shape)  # type: ignore[arg-type]
        self.passed, self.waits = [], Counter()
        self.most: Counter[str] = Counter()

    @override
    def _admit(self, ids: list[str], left: int, tokens: dict[str, int]) -> list[Job]:
        late = [j for j in self.waiting.values() if j.ready and self.is_late(j)]
        heads = {job.tenant: job for job in reversed(late)}
        for job in late:
            self.most.setdefault(job.id, sum(1 for other in late if other is not job))
        admitted = super()._admit(ids, left, tokens)
        for job in admitted:
            still = [other for other in late if other.id in self.waiting]
            older = [o for o in still if self.coming_order(o) < self.coming_order(job)]
            self.passed += [(other, job) for other in older]
            for head in heads.values():
                self.waits[head.id] += head.id in self.waiting
        return admitted

    def is_late(self, job: Job) -> bool:
        return self.now_s - job.arrival_s >= MAX_WAIT_S

    @staticmethod
    def coming_order(job: Job) -> tuple[int, int]:
        return job.arrives, int(job.id[1:])


@st.composite
def floods(draw: st.DrawFn) -> list[Job]:
    n = draw(st.integers(1, 24))
    return [
        Job(
            f"r{i}",
            prompt=draw(st.integers(1, 20)),
            outputs=draw(st.integers(1, 12)),
            tenant=draw(st.sampled_from(["a", "a", "a", "b", "c"])),
            arrives=draw(st.integers(0, 20)),
        )
        for i in range(n)
    ]


shapes = st.fixed_dictionaries({"seats": st.integers(1, 3), "budget": st.integers(8, 40)})


@given(floods(), shapes)
@settings(max_examples=150, deadline=None)
def test_without_turns_no_later_arrival_overtakes_an_overdue_request(
    work: list[Job], shape: dict[str, int]
) -> None:
    engine = Watched("none", blocks=1000, **shape)
    engine.run(work)
    assert engine.passed == []
    # Who was overdue before it may go first, and nobody else.
    for job in work:
        assert engine.waits[job.id] <= engine.most[job.id]


@given(floods(), shapes)
@settings(max_examples=150, deadline=None)
def test_with_turns_no_later_arrival_of_its_tenant_overtakes_an_overdue_request(
    work: list[Job], shape: dict[str, int]
) -> None:
    engine = Watched("tenant", blocks=1000, **shape)
    engine.run(work)
    assert [pair for pair in engine.passed if pair[0].tenant == pair[1].tenant] == []
    # Of each other tenant one overdue request goes first, and one that is not before each.
    tenants = {job.tenant for job in work}
    assert max(engine.waits.values(), default=0) <= 2 * len(tenants)


@given(floods(), shapes, st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_no_more_wait_than_may_and_who_has_started_is_never_refused(
    work: list[Job], shape: dict[str, int], most: int
) -> None:
    engine = MiniEngine(LatestFirst(), queue=Queue(max_waiting=most), blocks=1000, **shape)
    engine.coming = sorted(work, key=lambda job: job.arrives)
    while engine.unserved():
        engine.step()
        assert len(engine.waiting) <= most
    assert {job.id for job in (*engine.done, *engine.refused)} == {job.id for job in work}
    assert STEP_S * engine.index < 1e3
