from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.component import Component
from batchpolicy.config import Bounds, PolicyConfig, PolicySpec, config_named
from batchpolicy.engine import Run
from batchpolicy.errors import StepLimitReached, WorkloadError
from batchpolicy.step_cost import StepShape
from batchpolicy_tuning.cases import setting
from batchpolicy_tuning.cases.costs import policy_cpu_s, seconds_per_decision
from batchpolicy_tuning.cases.judge import judge
from batchpolicy_tuning.cases.needs import columns_read
from batchpolicy_tuning.cases.outcome import Outcome, Verdict
from batchpolicy_tuning.cases.reading import read_case
from batchpolicy_tuning.cases.schema import Case
from batchpolicy_tuning.cases.setting import setting_of
from tests.unit.tuning.cases.files import ENGINE, case, row, written
from tests.unit.tuning.cases.scripted import Scripted, Step


def _case(folder: Path, **changes: Any) -> Case:
    return read_case(written(folder, case(**changes)))


def _on_light(folder: Path, policy: str = "priority", **changes: Any) -> Outcome:
    return judge(_case(folder, **changes), config_named(policy), registry.engine("light"))


def test_a_case_passes_and_fails_by_its_checks(tmp_path: Path) -> None:
    assert _on_light(tmp_path).verdict is Verdict.PASSED
    # a: prefill 0.02 + 10 * 0.001 s, then a decode of 0.022 s; b starts at 0.052 s.
    held = _on_light(tmp_path, checks=[{"kind": "wait_max", "ids": ["b"], "max_s": 0.042}])
    assert held.verdict is Verdict.PASSED
    late = _on_light(tmp_path, checks=[{"kind": "wait_max", "ids": ["b"], "max_s": 0.041}])
    assert str(late) == "T1 failed wait_max"
    assert str(late.failures[0]) == "wait_max: expected at most 0.041 s; found 0.042 s (b)"


@pytest.mark.parametrize(
    ("policy", "changes", "lacking"),
    [
        ("priority", {"kind": "ab"}, "kind ab is not runnable yet"),
        ("priority", {"checks": [{"kind": "ab_verdicts"}]}, "check ab_verdicts is not runnable"),
        ("priority", {"needs": ["tenant_fairness"]}, "tenant_fairness (policy priority)"),
        ("edf", {"needs": ["priority"]}, "priority (policy edf)"),
        ("fcfs", {"needs": ["admission"]}, "admission (the engine's own order)"),
        (
            "fcfs",
            {"needs": ["preemption_or_reserved_seats"]},
            "preemption_or_reserved_seats (preempt: never)",
        ),
    ],
)
def test_a_case_whose_needs_are_not_met_is_not_applicable(
    tmp_path: Path, policy: str, changes: dict[str, Any], lacking: str
) -> None:
    found = _on_light(tmp_path, policy, **changes)
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert lacking in " ".join(found.lacking)


def test_what_requests_and_limits_ask_of_the_engine_counts_as_needs(tmp_path: Path) -> None:
    changes = {
        "requests": [row("a", lora="x"), row("b", cancel_at_s=1.0), row("c", ready_at_s=1.0)],
        "engine": {**ENGINE, "max_waiting": 3, "prefix_cache": True, "encoder_cache_tokens": 9},
    }
    found = judge(_case(tmp_path, **changes), config_named("priority"), Scripted([]))
    # Under a policy the limit of the queue is the runner's to keep.
    assert sorted(found.lacking) == [
        f"{need} (engine scripted)"
        for need in ("abort", "blocked_requests", "encoder_budget", "lora", "prefix_cache")
    ]
    alone = judge(_case(tmp_path, **changes), config_named("fcfs"), Scripted([]))
    assert "queue_limit (the engine's own order)" in alone.lacking


def test_needs_of_an_order_are_met_by_the_columns_that_a_policy_reads() -> None:
    read = {name: columns_read(config_named(name).build_policy()) for name in ("fcfs", "edf")}
    assert read["fcfs"] == {"arrival_s"}
    assert "deadline_s" in read["edf"] and "priority" not in read["edf"]
    params = {"lambda": 0, "ageing": {"weight": 0}, "corridor_tokens": None}
    unfair = PolicyConfig(policy=PolicySpec(name="benefit", params=params))
    assert "tenant" not in columns_read(unfair.build_policy())
    assert "tenant" in columns_read(config_named("benefit").build_policy())


def test_operator_settings_go_into_the_policy_and_unknown_ones_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PolicyConfig(policy=PolicySpec(name="fcfs"), bounds=Bounds(max_bypass_s=9.0))
    asked = {"max_bypass_s": 3, "ttl_s": "4s"}
    made = setting_of(_case(tmp_path, operator_settings=asked), config).config
    assert made.bounds == Bounds(max_bypass_s=3.0)
    assert made.queue is not None and made.queue.ttl_s == 4.0
    # As before the policy file knew it.
    later = _case(tmp_path, operator_settings={"max_bypass_s": 3, "max_wait_s": 5})
    monkeypatch.setattr(setting, "SETTINGS", (_Old,))
    found = judge(later, config_named("priority"), registry.engine("light"))
    assert found.verdict is Verdict.PASSED
    assert "max_wait_s is not a setting yet" in found.notes


class _Old(Component):
    max_bypass_s: float = 2.0


def test_an_unset_priority_is_the_default_and_higher_may_be_more_urgent(tmp_path: Path) -> None:
    requests = [row("a", priority=3), row("b", priority=None), row("c")]
    found = _case(tmp_path, requests=requests, default_priority=5)
    lower = setting_of(found, config_named("priority")).workload.requests
    assert [r.priority for r in lower] == [3, 5, 5]
    higher = found.model_copy(update={"priority_convention": "higher_is_more_urgent"})
    asked = setting_of(higher, config_named("priority")).workload.requests
    assert [r.priority for r in asked] == [-3, -5, -5]


def test_the_clock_is_the_cases(tmp_path: Path) -> None:
    clock = setting_of(_case(tmp_path), config_named("priority")).clock
    assert clock(StepShape(prefill_tokens=10, decodes=3)) == 0.02 + 0.010 + 0.006
    assert clock(StepShape()) == 0.0


VARIANT = {"name": "v", "expect_same": ["order"]}


@pytest.mark.parametrize(
    ("variant", "failed"),
    [
        ({**VARIANT, "negate_priorities": True}, ["variant"]),
        (
            {
                **VARIANT,
                "negate_priorities": True,
                "priority_convention": "higher_is_more_urgent",
            },
            [],
        ),
        ({**VARIANT, "expect_same": ["status"], "negate_priorities": True}, []),
        ({**VARIANT, "expect_same": ["schedule"], "engine": {**ENGINE, "max_num_seqs": 2}},
         ["variant"]),
    ],
)  # fmt: skip
def test_what_a_variant_must_not_change_is_compared(
    tmp_path: Path, variant: dict[str, Any], failed: list[str]
) -> None:
    requests = [row("first"), row("low", 0.01, priority=9), row("high", 0.01, priority=1)]
    found = _on_light(tmp_path, requests=requests, variants=[variant])
    assert [failure.kind for failure in found.failures] == failed


# Nothing is said of I4 where the engine starts late, if the case suspends it.
LATE = [Step(0.5, {"a": 10}), Step(1.5, {"a": 1})]


@pytest.mark.parametrize(("exempt", "failed"), [([], ["I4"]), (["I4"], [])])
def test_a_suspended_invariant_is_not_held(
    tmp_path: Path, exempt: list[str], failed: list[str]
) -> None:
    found = _case(tmp_path, requests=[row("a")], exempt_invariants=exempt)
    outcome = judge(found, config_named("priority"), Scripted(LATE))
    assert [failure.kind for failure in outcome.failures] == failed


class _Fickle(Scripted):
    """Starts later each time."""

    @override
    def replay(self, *args: Any, **more: Any) -> Run:
        run = super().replay(*args, **more)
        self.steps = [step._replace(start_s=step.start_s + 1.0) for step in self.steps]
        return run


class _Meddling(Scripted):
    """Gives the first request another priority."""

    @override
    def replay(self, *args: Any, **more: Any) -> Run:
        run = super().replay(*args, **more)
        first, *others = run.workload.requests
        changed = replace(run.workload, requests=(replace(first, priority=3), *others))
        return replace(run, workload=changed)


class _Failing(Scripted):
    def __init__(self, fault: Exception) -> None:
        super().__init__([])
        self._fault = fault

    @override
    def replay(self, *args: Any, **more: Any) -> Run:
        raise self._fault


class _Falling(Scripted):
    """Fell back to arrival order."""

    @override
    def replay(self, *args: Any, **more: Any) -> Run:
        return replace(super().replay(*args, **more), counters={"policy_faults": 2})


NOW = [Step(0.0, {"a": 10}), Step(1.0, {"a": 1})]


@pytest.mark.parametrize(
    ("engine", "failed"),
    [
        (_Fickle(NOW), "I7: expected the same schedule twice; found step 0 differs"),
        (_Meddling(NOW), "I8: expected the facts of requests as they were; found 'a' went in"),
        (_Failing(WorkloadError("too\nlarge")), "run: expected a run; found too large"),
        (_Failing(StepLimitReached("no end")), "I5: expected an end; found none in 100,000 steps"),
        (_Failing(KeyError("x")), "run: expected a run; found KeyError: 'x'"),
        (_Falling(NOW), "run: expected a run without faults; found 2 policy_faults"),
    ],
)
def test_an_engine_that_fails_fails_the_case_and_nothing_else(
    tmp_path: Path, engine: Scripted, failed: str
) -> None:
    outcome = judge(_case(tmp_path, requests=[row("a")]), config_named("priority"), engine)
    assert outcome.verdict is Verdict.FAILED
    (found,) = outcome.failures
    assert str(found).startswith(failed)


def test_the_policys_own_time_is_measured_and_changes_nothing(tmp_path: Path) -> None:
    requests = [row("a"), row("many", 0.01, repeat={"count": 50, "every_s": 0.0})]
    made = setting_of(_case(tmp_path, requests=requests), config_named("benefit"))
    light = registry.engine("light")
    assert 0.0 < policy_cpu_s(light, made) < 5.0
    native = setting_of(_case(tmp_path, requests=requests), config_named("fcfs"))
    # The engine's own order asks no policy.
    assert policy_cpu_s(light, native) == 0.0


@pytest.mark.slow
def test_a_decision_costs_more_with_a_longer_queue(tmp_path: Path) -> None:
    made = setting_of(_case(tmp_path), config_named("benefit"))
    light = registry.engine("light")
    small, large = (seconds_per_decision(light, made, queue) for queue in (10, 20_000))
    assert 0.0 < small < large
