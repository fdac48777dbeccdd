"""How many trials the tuner needs to reach a goal, and how many plain Optuna."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna

from batchpolicy.bench import Measurement, Progress
from batchpolicy_tuning.tune.landscape import Key
from batchpolicy_tuning.tune.landscape_file import GOAL, LIMIT, Table, search_in
from batchpolicy_tuning.tune.records import Outcome, TrialRecord
from batchpolicy_tuning.tune.sampler import SamplerName

SHARE = 0.99
"""Part of the best feasible goodput at which a search has arrived."""
MOST = 200
"""Trials after which a search is given up."""


@dataclass(frozen=True, slots=True)
class Raced:
    """Trials that each study took, and those of them that were repetitions."""

    trials: Sequence[int]
    repeated: float = 0.0

    @property
    def median(self) -> float:
        """Of the trials."""
        return statistics.median(self.trials)

    @property
    def p90(self) -> float:
        """Of the trials."""
        return float(np.percentile(self.trials, 90))


def raced(
    table: Table, seeds: Sequence[int], sampler: SamplerName, studies: int, progress: Progress
) -> tuple[Raced, Raced]:
    """So many studies of the tuner and as many of plain Optuna, with the same seeds."""
    goal = SHARE * table.optimum(seeds)
    ours: list[int] = []
    plain: list[int] = []
    again = 0
    for k in range(studies):
        if k % max(studies // 10, 1) == 0:
            progress(f"{sampler}: {k} of {studies} pairs of studies")
        ours.append(_ours(table, seeds, sampler, k, goal))
        trials, repeated = _plain(table, seeds, sampler, k, goal)
        plain.append(trials)
        again += repeated
    return Raced(ours), Raced(plain, again / sum(plain))


def _ours(table: Table, seeds: Sequence[int], sampler: SamplerName, seed: int, goal: float) -> int:
    """Trials until the goal, without the baseline's."""
    arrived: list[int] = []
    counted = 0

    def told(record: TrialRecord) -> None:
        nonlocal counted
        counted += record.origin == "sampled"
        if record.outcome is Outcome.FEASIBLE and record.values[GOAL.key] >= goal:
            arrived.append(counted)

    search = search_in(table, seeds, sampler, seed, MOST + 1, told)
    while not arrived and search[0].step():
        pass
    return arrived[0] if arrived else MOST


def _plain(
    table: Table, seeds: Sequence[int], sampler: SamplerName, seed: int, goal: float
) -> tuple[int, int]:
    """Trials until the goal, and those of them that had been run before."""
    old = not hasattr(optuna.trial.Trial, "set_constraint")
    seen: list[Key] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told: dict[str, Any] = {}
        if old and sampler != "random":
            told["constraints_func"] = _constraint
        samplers: dict[str, Any] = {
            "tpe": optuna.samplers.TPESampler,
            "random": optuna.samplers.RandomSampler,
            "gp": optuna.samplers.GPSampler,
        }
        made = samplers[sampler](seed=seed, **told)
        study = optuna.create_study(direction="maximize", sampler=made)
        distributions = {one.name: one.coded() for one in table.space.parameters}
        for _ in range(MOST):
            trial = study.ask(distributions)
            key = tuple(one.decode(trial.params[one.name]) for one in table.space.parameters)
            seen.append(key)
            values = table.means(key, seeds)
            miss = LIMIT.judge(values).miss
            if old:
                trial.set_user_attr("miss", miss)
            else:
                trial.set_constraint("miss", miss)
            study.tell(trial, values[GOAL.key])
            if miss <= 0.0 and values[GOAL.key] >= goal:
                break
    return len(seen), len(seen) - len(set(seen))


def _constraint(trial: optuna.trial.FrozenTrial) -> Sequence[float]:
    return (float(trial.user_attrs["miss"]),)


def compared(sampler: str, ours: Raced, plain: Raced) -> Iterator[Measurement]:
    """Median and P90 of both."""
    for name in ("median", "p90"):
        mine, theirs = getattr(ours, name), getattr(plain, name)
        yield Measurement(
            f"{sampler}, {len(ours.trials)} studies: {name if name == 'median' else 'P90'}",
            f"{mine:g} against {theirs:g} trials",
            "<= plain Optuna's",
            mine <= theirs,
        )


def rows(sampler: str, ours: Raced, plain: Raced) -> Iterator[Sequence[str]]:
    """Rows of a table: quantiles of the trials, the most, and the part that was repeated."""
    for name, one in ((f"{sampler}, tuner", ours), (f"{sampler}, plain", plain)):
        shares = [f"{np.percentile(one.trials, q):g}" for q in (10, 25, 50, 75, 90)]
        yield (name, *shares, str(max(one.trials)), f"{one.repeated:.0%}")
