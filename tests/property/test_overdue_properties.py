"""The bounds on waiting, and the certificates, under orders that are as unfair as can be."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.config import Bounds, Queue
from batchpolicy.preemption import Preempt
from batchpolicy.runner.certificate import Certificate, Starts
from tests.support.mini_engine import STEP_S, Job, MiniEngine
from tests.support.witness import Adversary, Wait, Witness

BLOCK = 4


@st.composite
def floods(draw: st.DrawFn) -> list[Job]:
    made = []
    for i in range(draw(st.integers(1, 24))):
        made.append(
            Job(
                f"r{i}",
                prompt=draw(st.integers(1, 20)),
                outputs=draw(st.integers(1, 12)),
                priority=draw(st.sampled_from([0, 0, 0, 1, 2])),
                tenant=draw(st.sampled_from(["a", "a", "a", "b", "c", ""])),
                arrives=draw(st.integers(0, 20)),
                blocked_for=draw(st.sampled_from([0, 0, 0, 9])),
            )
        )
        if draw(st.integers(0, 7)) == 0:
            made[-1].cancelled = draw(st.integers(0, 40))
    return made


shapes = st.fixed_dictionaries(
    {
        "seats": st.integers(1, 3),
        "budget": st.integers(8, 40),
        # A request, its output and a step that overshoots always fit.
        "blocks": st.sampled_from([9, 12, 1000]),
        "block_tokens": st.just(BLOCK),
        "lag": st.integers(0, 1),
        "max_bypass_s": st.sampled_from([0.0, 1.0]),
    }
)
seeds = st.integers(0, 29)
preempts = st.sampled_from(["never", "class"])


def witnessed(
    work: list[Job], shape: dict[str, int], seed: int, preempt: Preempt, **bounds: object
) -> Witness:
    """The run of such a workload under an adversary, each of whose waits is written down."""
    shape = dict(shape)
    bypass_s = shape.pop("max_bypass_s")
    engine = Witness(
        Adversary(seed=seed),
        Bounds.model_validate({"max_wait_s": 2.0, "max_bypass_s": bypass_s, **bounds}),
        preempt=preempt,
        **shape,
    )
    engine.run(work)
    return engine


def late(engine: Witness) -> list[Wait]:
    return [wait for wait in engine.waits if not math.isnan(wait.late_s)]


def check_time(engine: Witness, wait: Wait) -> None:
    """Somebody before it was served as long as it waited, so its wait is within their service."""
    assert wait.idle == 0
    if not math.isnan(wait.started_s):
        assert wait.started_s - wait.late_s <= engine.certified_s(wait) + 1e-9


@given(floods(), shapes, seeds, preempts)
@settings(max_examples=150, deadline=None)
def test_without_turns_only_older_overdue_requests_start_before_an_overdue_one(
    work: list[Job], shape: dict[str, int], seed: int, preempt: Preempt
) -> None:
    engine = witnessed(work, shape, seed, preempt, turns="none")
    for wait in late(engine):
        for run in wait.before:
            assert run.was_late
            assert engine.seq(run.job) < engine.seq(wait.job)
        check_time(engine, wait)


@given(floods(), shapes, seeds, preempts)
@settings(max_examples=150, deadline=None)
def test_with_turns_tenants_start_in_turn_before_an_overdue_request(
    work: list[Job], shape: dict[str, int], seed: int, preempt: Preempt
) -> None:
    engine = witnessed(work, shape, seed, preempt, turns="tenant")
    for wait in late(engine):
        own = [run for run in wait.before if run.job.tenant == wait.job.tenant]
        assert all(run.was_late and engine.seq(run.job) < engine.seq(wait.job) for run in own)
        others = Counter(run.job.tenant for run in wait.before if run.was_late and run not in own)
        # Each other tenant once before each of its own, itself included.
        assert max(others.values(), default=0) <= len(own) + 1
        # And once somebody who is not overdue before each who is.
        ordinary = sum(not run.was_late for run in wait.before)
        assert ordinary <= len(own) + sum(others.values()) + 1
        check_time(engine, wait)


@pytest.mark.parametrize("turns", ["none", "tenant"])
@given(floods(), shapes, seeds, preempts, st.sampled_from([None, 1, 3]))
@settings(max_examples=100, deadline=None)
def test_certificates_say_what_happened_and_the_wait_was_within_what_they_certify(
    turns: str,
    work: list[Job],
    shape: dict[str, int],
    seed: int,
    preempt: Preempt,
    overtakes: int | None,
) -> None:
    engine = witnessed(work, shape, seed, preempt, turns=turns, max_overtakes=overtakes)
    last = {wait.job.id: wait for wait in engine.waits}
    found = 0
    for wait in last.values():
        certificate = engine.runner.certificate(wait.job.id)
        assert certificate is not None
        check_overtakes(engine, wait, certificate)
        if not math.isnan(wait.started_s):
            check_wait(engine, wait, certificate)
        found += not math.isnan(certificate.overdue_s)
    assert engine.runner.counters["overdue"] >= found
    if last:
        most = max(len(passed) for passed in engine.passed_by.values())
        assert engine.runner.counters["most_overtakes"] == most


def check_overtakes(engine: Witness, wait: Wait, certificate: Certificate) -> None:
    passed = engine.passed_by[wait.job.id]
    assert certificate.overtakes == len(passed)
    own = sum(job.tenant == wait.job.tenant for job in passed)
    assert certificate.tenant_overtakes == own


def check_wait(engine: Witness, wait: Wait, certificate: Certificate) -> None:
    assert certificate.since_s == wait.since_s
    assert certificate.waited_s == pytest.approx(wait.started_s - wait.since_s)
    total_s = sum(one.started_s - one.since_s for one in engine.waits if one.job.id == wait.job.id)
    assert certificate.total_wait_s == pytest.approx(total_s)
    # Waits count in steps, and a bound that falls between two of them shows at the second.
    assert certificate.waited_s <= certificate.certified_wait_s + STEP_S
    if math.isnan(certificate.overdue_s):
        assert math.isnan(wait.late_s)
        return
    assert certificate.waited_s <= certificate.certified_wait_s
    served = [run.served_s(certificate.overdue_s, wait.started_s) for run in engine.runs]
    assert certificate.service_s == pytest.approx(sum(served))
    if wait.gaps:
        return
    own = sum(run.was_late and run.job.tenant == wait.job.tenant for run in wait.before)
    every = sum(run.was_late for run in wait.before)
    assert certificate.starts == Starts(own, every - own, len(wait.before) - every)
    assert certificate.kept


@given(floods(), shapes, seeds)
@settings(max_examples=100, deadline=None)
def test_so_many_starts_are_certified_in_advance_where_nobody_comes_back(
    work: list[Job], shape: dict[str, int], seed: int
) -> None:
    for job in work:
        job.blocked_for = 0
    engine = witnessed(work, shape | {"blocks": 1000}, seed, "never", turns="none")
    for wait in late(engine):
        certificate = engine.runner.certificate(wait.job.id)
        assert certificate is not None
        assert sum(certificate.starts) <= certificate.certified_starts


@given(floods(), shapes, st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_no_more_wait_than_may_and_who_has_started_is_never_refused(
    work: list[Job], shape: dict[str, int], most: int
) -> None:
    for job in work:
        job.blocked_for = 0
    shape = {"seats": shape["seats"], "budget": shape["budget"], "blocks": 1000}
    queue = Queue(max_waiting=most)
    engine = MiniEngine(Adversary(), queue=queue, preempt="never", **shape)  # type: ignore[arg-type]
    engine.coming = sorted(work, key=lambda job: job.arrives)
    while engine.unserved():
        engine.step()
        assert len(engine.waiting) <= most
    assert {job.id for job in (*engine.done, *engine.refused)} == {job.id for job in work}
    assert STEP_S * engine.index < 1e3
