from __future__ import annotations

import math

import pytest

from batchpolicy.target_grammar import parse_target
from batchpolicy_tuning.tune.judging import (
    MOST_MISS,
    Goal,
    Limit,
    best_of,
    binding,
    closest_of,
    judge,
    missed_by,
    pareto,
    shown,
)
from batchpolicy_tuning.tune.records import Outcome, TargetResult, TrialRecord

TTFT = Limit.of(parse_target("ttft.p99<=500ms@class=chat"))
SHARE = Limit.of(parse_target("attainment>=90%"))
GOAL = Goal("goodput", True)


def _trial(number: int, outcome: Outcome, goodput: float, *misses: float) -> TrialRecord:
    return TrialRecord(
        number=number,
        origin="sampled",
        label="x",
        key=str(number),
        parameters={},
        outcome=outcome,
        values={"goodput": goodput, "cost": 100.0 - number},
        targets=tuple(
            TargetResult(target=f"t{i}", value=1.0, bound=1.0, met=miss <= 0.0, miss=miss)
            for i, miss in enumerate(misses)
        ),
    )


def test_a_target_is_met_at_its_bound_and_missed_in_parts_of_it() -> None:
    met = TTFT.judge({"ttft.p99@class=chat": 0.5})
    assert met.met
    assert met.miss == 0.0
    missed = TTFT.judge({"ttft.p99@class=chat": 0.6})
    assert not missed.met
    assert missed.miss == pytest.approx(0.2)
    assert SHARE.judge({"attainment": 0.45}).miss == pytest.approx(0.5)
    assert SHARE.judge({"attainment": 0.99}).miss == pytest.approx(-0.1)


@pytest.mark.parametrize("values", [{}, {"ttft.p99@class=chat": math.nan}])
def test_what_was_not_measured_never_meets_a_target(values: dict[str, float]) -> None:
    result = TTFT.judge(values)
    assert not result.met
    assert result.value is None
    assert result.miss == MOST_MISS
    verdict = judge([TTFT], [GOAL], {"goodput": 5.0, **values})
    assert verdict.outcome is Outcome.INFEASIBLE
    assert verdict.reason == "ttft.p99<=500ms@class=chat: could not be measured"


def test_what_has_no_end_misses_by_the_most_there_is() -> None:
    result = TTFT.judge({"ttft.p99@class=chat": math.inf})
    assert (result.met, result.miss, result.value) == (False, MOST_MISS, math.inf)
    assert missed_by(result) == "ttft.p99<=500ms@class=chat: no end, requests were not served"


@pytest.mark.parametrize("values", [{}, {"goodput": math.nan}, {"goodput": -math.inf}])
def test_an_objective_without_value_is_a_failure_and_no_zero(values: dict[str, float]) -> None:
    verdict = judge([], [GOAL], values)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("goodput ")


def test_all_missed_targets_are_named_with_their_distance() -> None:
    verdict = judge(
        [TTFT, SHARE],
        [GOAL],
        {"goodput": 1.0, "ttft.p99@class=chat": 1.5, "attainment": 0.81},
    )
    assert verdict.outcome is Outcome.INFEASIBLE
    assert verdict.reason == (
        "ttft.p99<=500ms@class=chat: 1.5 s, 3 times the bound; attainment>=90%: 81.00%, 10.0% off"
    )


def test_only_a_feasible_trial_is_best() -> None:
    trials = [
        _trial(0, Outcome.INFEASIBLE, 99.0, 0.1),
        _trial(1, Outcome.PRUNED, 98.0, -0.1),
        _trial(2, Outcome.FAILED, 97.0),
        _trial(3, Outcome.FEASIBLE, 5.0, -0.1),
        _trial(4, Outcome.FEASIBLE, 5.0, -0.1),
    ]
    best = best_of([GOAL], trials)
    assert best is not None
    assert best.number == 3
    assert best_of([GOAL], trials[:3]) is None


def test_the_closest_is_the_one_whose_farthest_target_is_nearest() -> None:
    trials = [
        _trial(0, Outcome.INFEASIBLE, 9.0, 0.5, -0.5),
        _trial(1, Outcome.INFEASIBLE, 1.0, 0.2, 0.3),
        _trial(2, Outcome.PRUNED, 1.0, 0.01, 0.01),
    ]
    closest = closest_of(trials)
    assert closest is not None
    assert closest.number == 1
    assert binding(closest).target == "t1"


def test_the_front_holds_what_no_other_beats_in_all() -> None:
    goals = [GOAL, Goal("cost", False)]
    trials = [
        _trial(0, Outcome.FEASIBLE, 9.0),
        _trial(1, Outcome.FEASIBLE, 8.0),
        _trial(2, Outcome.FEASIBLE, 9.5),
        _trial(3, Outcome.FEASIBLE, 7.0),
        _trial(4, Outcome.INFEASIBLE, 99.0),
    ]
    # cost falls with the number: 0 and 1 are beaten by 2, 3 is cheaper than 2.
    assert [one.number for one in pareto(goals, trials)] == [2, 3]


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("ttft.p99<=1s", 0.25, "250 ms"),
        ("attainment>=90%", 0.5, "50.00%"),
        ("goodput", 12.345, "12.35 req/s"),
        ("throughput", 12345.0, "12,345 tok/s"),
        ("preemptions<=5", 2.0, "2"),
    ],
)
def test_values_are_shown_in_their_unit(text: str, value: float, said: str) -> None:
    assert shown(text, value) == said
