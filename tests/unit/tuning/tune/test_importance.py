from __future__ import annotations

from batchpolicy_tuning.tune.importance import DISTANCE, FEWEST, importances
from batchpolicy_tuning.tune.judging import Goal
from batchpolicy_tuning.tune.records import Outcome, TrialRecord
from batchpolicy_tuning.tune.result import ImportanceResult
from batchpolicy_tuning.tune.space import Parameter
from tests.support.studies import targets, trial

GOALS = (Goal("goodput", True),)
SPACE = (
    Parameter("policy", choices=("fcfs", "benefit")),
    Parameter("benefit:lambda", 0.0, 1.0, of="benefit"),
    Parameter("seats", 0.0, 1.0),
)
GOLDEN = 0.618034


def _trial(k: int, goodput: float | None = None, policy: str = "benefit") -> TrialRecord:
    """Lambda goes up with ``k``; seats fill the range evenly and say nothing."""
    parameters = {"policy": policy, "seats": k * GOLDEN % 1.0}
    if policy == "benefit":
        parameters["benefit:lambda"] = k / 60.0
    value = k / 60.0 if goodput is None else goodput
    return trial(k, Outcome.FEASIBLE, value, parameters=parameters)


def _found(
    trials: list[TrialRecord], measure: str = "goodput", of: str = "benefit"
) -> ImportanceResult:
    every = importances(GOALS, SPACE, trials)
    return next(one for one in every if (one.measure, one.of) == (measure, of))


def test_the_parameter_that_decides_is_told_from_one_that_says_nothing() -> None:
    found = _found([_trial(k) for k in range(60)])
    assert [one.name for one in found.parameters] == ["benefit:lambda", "seats"]
    decides, idle = found.parameters
    assert decides.share > 0.9
    assert decides.share > 3.0 * decides.chance
    assert idle.share < idle.chance
    assert abs(sum(one.share for one in found.parameters) - 1.0) < 1e-9


def test_parameters_of_a_policy_are_judged_among_its_trials_alone() -> None:
    trials = [_trial(k, policy="fcfs" if k % 2 else "benefit") for k in range(50)]
    everywhere, own = _found(trials, of=""), _found(trials)
    assert everywhere.trials == 50
    assert {one.name for one in everywhere.parameters} == {"policy", "seats"}
    assert own.trials == 25
    assert {one.name for one in own.parameters} == {"benefit:lambda", "seats"}


def test_nothing_is_said_of_few_trials_or_of_equal_ones() -> None:
    few = _found([_trial(k) for k in range(FEWEST - 1)])
    assert not few.parameters
    assert few.reason == "too few trials: 19 were measured to the end, 20 are needed"
    assert _found([_trial(k) for k in range(FEWEST)]).parameters
    equal = _found([_trial(k, goodput=1.0) for k in range(FEWEST)])
    assert not equal.parameters
    assert equal.reason == "all trials are as good as the best quarter"


def test_only_trials_that_were_measured_to_the_end_count() -> None:
    trials = [_trial(k) for k in range(FEWEST)]
    pruned = [one.model_copy(update={"outcome": Outcome.PRUNED}) for one in trials[:5]]
    # Outside the space, as a policy file that is given.
    given = [one.model_copy(update={"parameters": {}}) for one in trials[5:7]]
    assert _found([*pruned, *given, *trials[7:]]).trials == FEWEST - 7


def test_the_distance_to_the_targets_counts_once_one_is_missed() -> None:
    met = [_trial(k).model_copy(update={"targets": targets(30.0, 0.95)}) for k in range(30)]
    assert {one.measure for one in importances(GOALS, SPACE, met)} == {"goodput"}
    missed = [
        one.model_copy(update={"targets": targets(100.0 - k, 0.95), "outcome": Outcome.INFEASIBLE})
        for k, one in enumerate(met)
    ]
    assert _found(missed, measure=DISTANCE).parameters[0].name == "benefit:lambda"


def test_equal_trials_give_equal_importance() -> None:
    trials = [_trial(k) for k in range(30)]
    assert importances(GOALS, SPACE, trials) == importances(GOALS, SPACE, trials)
