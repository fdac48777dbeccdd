"""Cases of kind ``tuning``: the tuner asks for settings, and a table answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from optuna.storages import InMemoryStorage

from batchpolicy_tuning.cases.check_specs import Check, OfScenario
from batchpolicy_tuning.cases.outcome import Failure
from batchpolicy_tuning.cases.schema import Case
from batchpolicy_tuning.cases.tuning_spec import Bound, Scenario, TuningSpec
from batchpolicy_tuning.tune.judging import Goal, Limit, best_of, closest_of
from batchpolicy_tuning.tune.landscape import Key, Landscape, Row
from batchpolicy_tuning.tune.ledger import Ledger
from batchpolicy_tuning.tune.records import Outcome, TrialRecord, Value
from batchpolicy_tuning.tune.sampler import Proposer
from batchpolicy_tuning.tune.search import Course, Search
from batchpolicy_tuning.tune.space import Parameter, Space
from batchpolicy_tuning.tune.storage import study_in


@dataclass(frozen=True, slots=True)
class Searched:
    """A scenario that was run."""

    landscape: Landscape
    trials: list[TrialRecord]

    @property
    def best(self) -> TrialRecord | None:
        """The feasible trial that is best."""
        return best_of(self.landscape.goals, self.trials)


def failures_of(case: Case) -> Iterator[Failure]:
    """What the tuner gets wrong in a case."""
    spec = case.tuning
    if spec is None:
        raise AssertionError("the reader asks for it")
    scenarios = {one.name: one for one in spec.scenarios}
    searched = {name: _searched(spec, one) for name, one in scenarios.items()}
    for check in case.checks:
        if check.kind == "tuning_no_repeat_of_failed":
            for name, one in searched.items():
                yield from _repeated(name, one)
        elif isinstance(check, OfScenario):
            scenario = scenarios[check.scenario]
            if check.kind == "tuning_same_twice":
                yield from _differs(check, searched[check.scenario], _searched(spec, scenario))
            else:
                yield from _answer(check, spec, scenario, searched[check.scenario])


def _answer(
    check: Check, spec: TuningSpec, scenario: Scenario, found: Searched
) -> Iterator[Failure]:
    best, closest = found.best, closest_of(found.trials)
    said = "nothing feasible" if best is None else f"{dict(best.parameters)}"
    where = f" in scenario {scenario.name!r}"
    if scenario.result == "infeasible":
        if best is not None:
            yield Failure(check.kind, f"nothing feasible{where}", said)
        elif closest is None:
            yield Failure(check.kind, f"the closest setting{where}", "none named")
    elif best is None or (scenario.best is not None and best.parameters != scenario.best):
        yield Failure(check.kind, f"{scenario.best}{where}", said)
    asked = _limits(spec, scenario)
    if any([t.target for t in one.targets] != [a.text for a in asked] for one in found.trials
           if one.targets):  # fmt: skip
        yield Failure(check.kind, f"the limits as given{where}", "others")


def _differs(check: Check, one: Searched, other: Searched) -> Iterator[Failure]:
    first, second = one.landscape.asked, other.landscape.asked
    if first != second:
        yield Failure(check.kind, "the same trials in both runs", f"{first} and {second}")
    answers = [None if s.best is None else dict(s.best.parameters) for s in (one, other)]
    if answers[0] != answers[1]:
        yield Failure(check.kind, "the same answer", f"{answers[0]} and {answers[1]}")


def _repeated(name: str, one: Searched) -> Iterator[Failure]:
    asked = one.landscape.asked
    twice = [key for i, key in enumerate(asked) if key in asked[:i]]
    if twice:
        expected = f"no setting twice in scenario {name!r}"
        yield Failure("tuning_no_repeat_of_failed", expected, str(twice[0]))
    for trial in one.trials:
        row = one.landscape.rows[one.landscape.key(trial.parameters)][0]
        if isinstance(row, str) and trial.outcome is not Outcome.FAILED:
            expected = f"{dict(trial.parameters)} failed in scenario {name!r}"
            yield Failure("tuning_no_repeat_of_failed", expected, trial.outcome.value)


def _searched(spec: TuningSpec, scenario: Scenario) -> Searched:
    space = Space(tuple(Parameter(name, choices=tuple(v)) for name, v in spec.parameters.items()))
    landscape = Landscape(
        space=space,
        limits=_limits(spec, scenario),
        goals=(Goal(spec.objective.metric, spec.objective.direction == "maximize"),),
        rows=_rows(spec, space),
        instances=("table",),
    )
    storage = InMemoryStorage()
    study_id = study_in(storage, scenario.name, [spec.objective.direction == "minimize"])
    ledger = Ledger(storage, study_id, space)
    proposer = Proposer(space, "tpe", scenario.seed, 1, scenario.trials)
    Search(landscape, ledger, proposer, Course(scenario.trials)).run()
    return Searched(landscape, ledger.trials())


def _rows(spec: TuningSpec, space: Space) -> dict[Key, tuple[Row]]:
    found: dict[Key, tuple[Row]] = {}
    for row in spec.table:
        key: tuple[Value, ...] = tuple(row.params[one.name] for one in space.parameters)
        failed = row.result.status == "failed"
        # First what is improved; a number that is not there is not 0.
        numbers = row.result.numbers()
        goal = spec.objective.metric
        ordered = {goal: numbers.get(goal, math.nan), **numbers}
        found[key] = (row.result.reason or "failed" if failed else ordered,)
    return found


def _limits(spec: TuningSpec, scenario: Scenario) -> tuple[Limit, ...]:
    """What must hold; a scenario's limits stand for those of its case that have their names."""
    asked = {**spec.constraints, **(scenario.constraints or {})}
    return tuple(_limit(name, bound) for name, bound in asked.items())


def _limit(name: str, bound: Bound) -> Limit:
    if bound.max is not None:
        return Limit(f"{name}<={bound.max:g}", name, bound.max, True)
    least = 0.0 if bound.min is None else bound.min
    return Limit(f"{name}>={least:g}", name, least, False)
