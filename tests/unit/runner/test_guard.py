from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchpolicy.errors import PolicyContractError
from batchpolicy.policy import Ranking, Step
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.runner import EngineFacts, Plan, PolicyRunner, RequestFacts
from tests.support.policies import Arrival, Patched, Recorder, Shortest, config_of


def runner_of(policy: Any, *, strict: bool = False, seats: int = 4) -> PolicyRunner:
    facts = EngineFacts(
        max_running=seats, max_token_budget=100, total_kv_blocks=100, kv_block_tokens=10,
        clock=lambda: 0.0,
    )  # fmt: skip
    return PolicyRunner(config_of(policy, "class"), facts, strict=strict)


def arrive(runner: PolicyRunner, prompts: dict[str, int], **facts: Any) -> None:
    for name, tokens in prompts.items():
        runner.arrived(name, RequestFacts(prompt_tokens=tokens, max_tokens=9, **facts))


def next_plan(runner: PolicyRunner, seats: int = 4) -> Plan:
    runner.begin(runner.tick())
    return Plan(*runner.plan(100, seats)[:3])


def raises(*args: Any) -> Any:
    raise RuntimeError("policy is broken")


def nan(rows: Any, step: Any) -> Any:
    return np.full(len(rows), np.nan)


def infinite(rows: Any, step: Any) -> Any:
    return np.full(len(rows), np.inf)


def minus_infinite(rows: Any, step: Any) -> Any:
    return np.full(len(rows), -np.inf)


def too_long(rows: Any, step: Any) -> Any:
    return np.zeros(len(rows) + 1)


def square(rows: Any, step: Any) -> Any:
    return np.zeros((len(rows), 1))


def words(rows: Any, step: Any) -> Any:
    return np.full(len(rows), "high")


def fractions(rows: Any, step: Any) -> Any:
    return np.full(len(rows), 0.5)


def scalar(rows: Any, step: Any) -> Any:
    return 1.0


def nothing(rows: Any, step: Any) -> Any:
    return None


def swallowed_exit(rows: Any, step: Any) -> Any:
    raise StopIteration


BAD_FLOATS = [raises, nan, too_long, square, words, scalar, nothing, swallowed_exit]
CALLS: list[tuple[str, Callable[..., Any]]] = [
    *(("benefit", bad) for bad in [*BAD_FLOATS, infinite]),
    *(("tier", bad) for bad in [raises, nan, too_long, square, words, fractions]),
    *(("admissible", bad) for bad in [raises, too_long, square, words, fractions]),
    ("rank", raises),
    ("rank", nothing),
    ("rank", lambda rows, step: rows.seq),
    ("rank", lambda rows, step: Ranking(np.zeros(len(rows)), admissible=np.zeros(0, np.bool_))),
]


@pytest.mark.parametrize(("method", "bad"), CALLS)
def test_a_faulty_answer_means_order_of_arrival_for_that_step(
    method: str, bad: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    def sometimes(rows: Any, step: Any) -> Any:
        good = getattr(Shortest(), method)
        return bad(rows, step) if broken else good(rows, step)

    runner = runner_of(Patched.over(Shortest(), **{method: sometimes}))
    arrive(runner, {"long": 30, "short": 10, "middle": 20})
    for _ in range(3):
        assert next_plan(runner).admit == ["long", "short", "middle"]
    assert runner.counters["policy_faults"] == 3
    broken = False
    assert next_plan(runner).admit == ["short", "middle", "long"]
    assert runner.counters["policy_faults"] == 3
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info


@pytest.mark.parametrize(("method", "bad"), CALLS)
def test_a_strict_runner_raises_what_went_wrong(method: str, bad: Callable[..., Any]) -> None:
    runner = runner_of(Patched.over(Shortest(), **{method: bad}), strict=True)
    arrive(runner, {"a": 1})
    with pytest.raises(Exception) as caught:
        next_plan(runner)
    assert runner.counters["policy_faults"] == 0
    if bad in {nan, infinite, too_long, square, words, fractions, scalar}:
        assert caught.type is PolicyContractError
        assert method in str(caught.value)


def test_integers_and_truth_values_will_do_where_floats_are_expected() -> None:
    runner = runner_of(Patched.over(Arrival(), benefit=lambda rows, step: rows.prompt_tokens))
    arrive(runner, {"short": 10, "long": 30})
    assert next_plan(runner).admit == ["long", "short"]
    assert not runner.counters["policy_faults"]


def displacing(method: str, bad: Callable[..., Any], *, strict: bool = False) -> PolicyRunner:
    """Two running requests of class 1, the earlier worth less, and no free seat."""

    def later_is_better(rows: Any, step: Any) -> Any:
        return rows.seq.astype(np.float64)

    patches = {"keep_benefit": later_is_better, method: bad}
    runner = runner_of(Patched.over(Arrival(), **patches), strict=strict, seats=2)
    arrive(runner, {"first": 10, "second": 10}, priority=1)
    next_plan(runner, 2)
    runner.scheduled({"first": 10, "second": 10}, {"first": 0, "second": 0}, [])
    runner.produced({"first": 1, "second": 1}, {}, 0.1)
    arrive(runner, {"urgent": 10}, priority=0)
    return runner


def test_the_request_least_worth_keeping_is_displaced() -> None:
    runner = displacing("tier", nothing)
    assert next_plan(runner, 0) == Plan(["urgent"], ["first"])


@pytest.mark.parametrize(
    "bad", [*(bad for bad in BAD_FLOATS if bad is not nothing), minus_infinite]
)
def test_of_equals_the_latest_goes_when_keep_benefit_is_faulty(
    bad: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    runner = displacing("keep_benefit", bad)
    assert next_plan(runner, 0) == Plan(["urgent"], ["second"])
    assert runner.counters["policy_faults"] == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("bad", [raises, nan, too_long, words, fractions])
def test_of_equals_the_latest_goes_when_the_tier_of_running_rows_is_faulty(
    bad: Callable[..., Any],
) -> None:
    def only_when_running(rows: Any, step: Any) -> Any:
        return bad(rows, step) if rows is step.running else None

    runner = displacing("tier", only_when_running)
    assert next_plan(runner, 0) == Plan(["urgent"], ["second"])
    assert runner.counters["policy_faults"] == 1


def test_a_policy_may_leave_the_choice_among_equals_to_the_runner() -> None:
    runner = displacing("keep_benefit", nothing)
    assert next_plan(runner, 0) == Plan(["urgent"], ["second"])
    assert not runner.counters["policy_faults"]


def test_a_strict_runner_raises_for_a_faulty_keep_benefit() -> None:
    runner = displacing("keep_benefit", nan, strict=True)
    with pytest.raises(PolicyContractError, match="keep_benefit returned nan for row 0 of 2"):
        next_plan(runner, 0)


def test_a_request_of_infinite_benefit_of_keeping_is_never_a_victim() -> None:
    def keeps_first(rows: Any, step: Any) -> Any:
        return np.where(rows.seq == 0, np.inf, 1.0)

    assert next_plan(displacing("keep_benefit", keeps_first), 0).preempt == ["second"]
    kept = displacing("keep_benefit", infinite)
    assert next_plan(kept, 0) == Plan(["urgent"], [])
    assert not kept.counters["policy_faults"]


HOOKS = ["on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished"]


@pytest.mark.parametrize("hook", HOOKS)
def test_after_a_fault_in_a_hook_the_policy_is_neither_told_nor_asked(
    hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    runner = runner_of(Patched.over(recorder, **{hook: raises}))
    arrive(runner, {"a": 30, "b": 10})
    next_plan(runner)
    runner.scheduled({"a": 30, "b": 10}, {"a": 0, "b": 0}, [])
    runner.produced({"a": 1, "b": 1}, {}, 0.1)
    arrive(runner, {"c": 20})
    next_plan(runner)
    runner.scheduled({"a": 1}, {}, ["b"])
    runner.finished("a", 2)  # type: ignore[arg-type]
    arrive(runner, {"d": 20})
    next_plan(runner)
    before = list(recorder.calls)
    arrive(runner, {"e": 1})
    # b was submitted before c, and waits again.
    assert next_plan(runner).admit == ["b", "c", "d", "e"]
    assert recorder.calls == before
    assert runner.counters["hook_faults"] == 1
    (record,) = caplog.records
    assert "Patched" in record.getMessage()
    assert "from now on" in record.getMessage()


@pytest.mark.parametrize("hook", HOOKS[:1])
def test_a_strict_runner_raises_for_a_hook(hook: str) -> None:
    runner = runner_of(Patched.over(Arrival(), **{hook: raises}), strict=True)
    arrive(runner, {"a": 1})
    with pytest.raises(RuntimeError, match="policy is broken"):
        next_plan(runner)


def test_only_the_first_fault_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    runner = runner_of(Patched.over(Arrival(), benefit=nan, on_admitted=raises))
    arrive(runner, {"a": 1, "b": 1})
    next_plan(runner)
    runner.scheduled({"a": 1}, {"a": 0}, [])
    next_plan(runner)
    assert runner.counters["policy_faults"] == 1
    assert runner.counters["hook_faults"] == 1
    assert len(caplog.records) == 1


def test_leaving_a_program_is_no_fault_of_the_policy() -> None:
    def leaves(*args: Any) -> Any:
        raise KeyboardInterrupt

    runner = runner_of(Patched.over(Arrival(), benefit=leaves))
    arrive(runner, {"a": 1})
    with pytest.raises(KeyboardInterrupt):
        next_plan(runner)


@pytest.mark.parametrize("fault", [SystemExit(3), GeneratorExit()])
def test_a_policy_cannot_end_the_process(fault: BaseException) -> None:
    def leaves(rows: Requests, step: Step) -> FloatArray:
        raise fault

    runner = runner_of(Patched.over(Shortest(), benefit=leaves))
    arrive(runner, {"a": 3, "b": 1})
    assert next_plan(runner).admit == ["a", "b"]
    assert runner.counters["policy_faults"] == 1


def test_a_signal_that_falls_into_a_policys_call_ends_the_process() -> None:
    def stop(number: int, frame: object) -> None:
        raise SystemExit(0)

    def interrupted(rows: Requests, step: Step) -> FloatArray:
        os.kill(os.getpid(), signal.SIGTERM)
        return -rows.seq.astype(np.float64)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        runner = runner_of(Patched.over(Shortest(), benefit=interrupted))
        arrive(runner, {"a": 3})
        with pytest.raises(SystemExit):
            next_plan(runner)
    finally:
        signal.signal(signal.SIGTERM, before)
