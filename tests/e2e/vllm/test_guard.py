"""Faults of a policy, and of our own, under a running engine: everything is still served."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchpolicy.policy import Policy
from batchpolicy_vllm import seams
from tests.support.policies import Arrival, Patched, config_of
from tests.support.vllm_bench import Bench, assert_served, play
from tests.support.vllm_replays import BENEFIT, TIGHT, TIGHT_CACHED, random_workload

pytestmark = pytest.mark.engine

SEED = 16
"""Of a workload with a dozen preemptions, some of them displacements."""
BENCHES = [(seams.Scheduler, 1), (seams.AsyncScheduler, 2)]
both_benches = pytest.mark.parametrize(("base", "in_flight"), BENCHES, ids=["sync", "async"])


def raises(*_: object, **__: object) -> Any:
    raise RuntimeError("an injected fault")


def from_call(first_bad: int, bad: Callable[..., Any], good: Callable[..., Any]) -> Any:
    """``good`` for the calls before the ``first_bad`` th, then ``bad``."""
    calls = 0

    def either(*args: Any, **keys: Any) -> Any:
        nonlocal calls
        calls += 1
        return (bad if calls >= first_bad else good)(*args, **keys)

    return either


def not_a_number(rows: Any, _: object) -> Any:
    return np.full(len(rows), np.nan)


def wrong_shape(rows: Any, _: object) -> Any:
    return np.zeros(len(rows) + 1)


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged with a traceback."""
    return [record.getMessage() for record in caplog.records if record.exc_info]


def policy_that(bad: Callable[..., Any], method: str) -> Policy:
    """Arrival order, with a method that goes wrong from its third call on."""
    good = Arrival()
    return Patched.over(good, **{method: from_call(3, bad, getattr(good, method))})


@both_benches
@pytest.mark.parametrize("preempt", ["never", "class"])
@pytest.mark.parametrize(
    ("bad", "method"),
    [
        (raises, "benefit"),
        (not_a_number, "benefit"),
        (wrong_shape, "benefit"),
        (raises, "tier"),
        (wrong_shape, "tier"),
        (raises, "admissible"),
        (raises, "keep_benefit"),
        (not_a_number, "keep_benefit"),
    ],
)
def test_what_a_policy_answers_wrongly_is_counted_and_everything_is_served(
    bad: Callable[..., Any],
    method: str,
    preempt: Any,
    base: type,
    in_flight: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(
        TIGHT, config_of(policy_that(bad, method), preempt), base=base, in_flight=in_flight
    )
    workload = random_workload(SEED)
    play(bench, workload, look_every=3)
    assert_served(bench, workload.requests)
    asked = preempt == "class" or method != "keep_benefit"
    assert (bench.counters.get("policy_faults", 0) > 0) == asked
    assert len(tracebacks(caplog)) == asked
    assert "adapter_faults" not in bench.counters


@both_benches
@pytest.mark.parametrize(
    "hook", ["on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished"]
)
def test_a_hook_that_raises_is_counted_once_and_the_policy_is_not_asked_again(
    hook: str, base: type, in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(TIGHT, config_of(policy_that(raises, hook)), base=base, in_flight=in_flight)
    workload = random_workload(SEED)
    play(bench, workload, look_every=3)
    assert_served(bench, workload.requests)
    assert bench.counters["hook_faults"] == 1
    assert "from now on" in tracebacks(caplog)[0]
    assert len(tracebacks(caplog)) == 1


# What the driver calls on the runner, and what else could break under it.
@both_benches
@pytest.mark.parametrize("first_bad", [1, 9])
@pytest.mark.parametrize(
    "call", ["tick", "begin", "plan", "scheduled", "produced_steadily", "arrived", "finished"]
)
def test_a_fault_of_our_own_leaves_the_engine_in_arrival_order(
    call: str, first_bad: int, base: type, in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(TIGHT_CACHED, BENEFIT, base=base, in_flight=in_flight)
    runner = bench.driver.runner
    setattr(runner, call, from_call(first_bad, raises, getattr(runner, call)))
    workload = random_workload(SEED)
    play(bench, workload)
    assert_served(bench, workload.requests)
    assert bench.counters["adapter_faults"] == 1
    assert len(tracebacks(caplog)) == 1
    assert "serving in order of arrival from now on" in tracebacks(caplog)[0]


@both_benches
def test_a_fault_between_two_victims_strands_neither(
    base: type, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seams, "preempt", from_call(2, raises, seams.preempt))
    bench = Bench(TIGHT, BENEFIT, base=base, in_flight=in_flight)
    workload = random_workload(SEED)
    play(bench, workload)
    assert_served(bench, workload.requests)
    assert bench.counters["adapter_faults"] == 1
    assert len(bench.preempted) >= 2


def test_after_a_fault_of_our_own_requests_start_in_the_order_of_their_arrival() -> None:
    bench = Bench(TIGHT, BENEFIT)
    bench.driver.runner.plan = raises
    names = [f"r{i}" for i in range(12)]
    for i, name in enumerate(names):
        bench.add(name, prompt=16, output=2, priority=-i)
    started: list[str] = []
    while bench.scheduler.has_requests():
        started += [name for name in bench.step() if name not in started]
    assert started == names


def test_a_fault_is_logged_as_ours(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(TIGHT, BENEFIT)
    bench.driver.runner.plan = raises
    bench.add("a")
    with caplog.at_level(logging.ERROR):
        bench.drain()
    assert [record.name for record in caplog.records] == ["batchpolicy_vllm.driver"]
    assert "an injected fault" in caplog.text
