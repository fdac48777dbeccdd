"""Which parameters tell good trials from others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, create_trial

from batchpolicy_tuning.tune.judging import Goal
from batchpolicy_tuning.tune.records import Outcome, TrialRecord
from batchpolicy_tuning.tune.result import ImportanceResult, ParameterImportance
from batchpolicy_tuning.tune.space import POLICY, Parameter

DISTANCE = "distance to the targets"
"""What is ranked beside the objectives, where some trial missed a target."""
FEWEST = 20
"""Trials that are needed: five of them are then among the best quarter."""
_BEST = 0.25
_SHUFFLES = 40
_LEVEL = 0.95
_MEASURED = (Outcome.FEASIBLE, Outcome.INFEASIBLE)


def importances(
    goals: Sequence[Goal], parameters: Sequence[Parameter], trials: Sequence[TrialRecord]
) -> tuple[ImportanceResult, ...]:
    """How much each parameter tells whether a trial is among the best quarter.

    By each objective and, where some missed a target, by the farthest target; over all trials
    that were measured to the end, and among those of each policy, whose own parameters exist
    nowhere else. Beside each share stands what shuffled results reach in 95 of 100 cases: a
    share below is no sign of anything.

    References
    ----------
    S. Watanabe, A. Bansal, F. Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter
    Importance in Arbitrary Subspaces", IJCAI 2023; as Optuna has it.
    """
    measured = [one for one in trials if one.outcome in _MEASURED]
    found: list[ImportanceResult] = []
    for measure, losses in _measures(goals, measured):
        for policy in dict.fromkeys(one.of for one in parameters):
            found.append(_among(measure, policy, parameters, measured, losses))
    return tuple(found)


def _measures(
    goals: Sequence[Goal], measured: Sequence[TrialRecord]
) -> Iterator[tuple[str, Mapping[int, float]]]:
    for goal in goals:
        losses = {one.number: goal.loss(one.values) for one in measured}
        yield goal.key, {k: loss for k, loss in losses.items() if math.isfinite(loss)}
    if any(one.outcome is Outcome.INFEASIBLE for one in measured):
        yield DISTANCE, {one.number: one.worst_miss for one in measured}


def _among(
    measure: str,
    policy: str,
    parameters: Sequence[Parameter],
    measured: Sequence[TrialRecord],
    losses: Mapping[int, float],
) -> ImportanceResult:
    """Of all trials, or of those of a policy with its own parameters in place of the choice."""
    asked = [one for one in parameters if one.of == policy or (not one.of and one.name != POLICY)]
    rows = [
        one
        for one in measured
        if one.number in losses
        and all(p.name in one.parameters and p.holds(one.parameters[p.name]) for p in asked)
    ]
    told = ImportanceResult(measure=measure, of=policy, trials=len(rows))
    if len(rows) < FEWEST:
        reason = f"too few trials: {len(rows)} were measured to the end, {FEWEST} are needed"
        return told.model_copy(update={"reason": reason})
    values = np.array([losses[one.number] for one in rows])
    best = np.sort(values)[math.ceil(_BEST * len(values)) - 1]
    if (values <= best).all():
        return told.model_copy(update={"reason": "all trials are as good as the best quarter"})
    return told.model_copy(update={"parameters": _shares(asked, rows, values)})


def _shares(
    asked: Sequence[Parameter], rows: Sequence[TrialRecord], values: np.ndarray
) -> tuple[ParameterImportance, ...]:
    random = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study()
        study.add_trials(
            create_trial(
                params={p.name: one.parameters[p.name] for p in asked},
                distributions={p.name: p.distribution() for p in asked},
                value=0.0,
            )
            for one in rows
        )
        names = [p.name for p in asked]
        real = _raw(study, names, values)
        shuffled = [_raw(study, names, random.permutation(values)) for _ in range(_SHUFFLES)]
    total = sum(real.values()) or 1.0
    found = [
        ParameterImportance(
            name=name,
            share=real[name] / total,
            chance=float(np.quantile([one[name] for one in shuffled], _LEVEL)) / total,
        )
        for name in names
    ]
    return tuple(sorted(found, key=lambda one: -one.share))


def _raw(study: optuna.Study, names: list[str], values: np.ndarray) -> dict[str, float]:
    def loss(trial: FrozenTrial) -> float:
        return float(values[trial.number])

    return get_param_importances(
        study, evaluator=_evaluator(), params=names, target=loss, normalize=False
    )


def _evaluator() -> PedAnovaImportanceEvaluator:
    try:
        return PedAnovaImportanceEvaluator(target_quantile=_BEST)
    except TypeError:  # its name before Optuna 4.6
        return PedAnovaImportanceEvaluator(baseline_quantile=_BEST)  # type: ignore[call-arg]
