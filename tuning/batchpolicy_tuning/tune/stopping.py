"""Whether a trial need not go on: Wilcoxon's signed-rank test over slices and seeds.

The instances are the same for every trial and come in one order, so that each difference is
between two settings on one workload. A signed-rank test asks whether they lie on one side
more often and farther than chance would have it; it needs four that agree at a level of 0.1.

References
----------
F. Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1(6), 1945.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import wilcoxon

from batchpolicy_tuning.tune.judging import Goal, Limit, best_of, closest_of
from batchpolicy_tuning.tune.records import Outcome, TrialRecord

_FEWEST = 2


def reason_to_stop(
    limits: Sequence[Limit],
    goals: Sequence[Goal],
    parts: Sequence[Mapping[str, float]],
    trials: Sequence[TrialRecord],
    level: float,
) -> str:
    """Why the rest of the instances would change nothing; empty to go on.

    With a feasible trial to beat, a setting is given up when its instances show that it
    misses a target, or that it is worse in the one objective. While nothing is feasible, when
    they show that it is farther from the targets than the closest setting. Several
    objectives have no single one to beat: there, only targets end a trial.

    ``parts`` holds the values of the instances so far, in order.
    """
    if level <= 0.0 or len(parts) < _FEWEST:
        return ""
    best = best_of(goals, trials)
    if best is None:
        complete = [one for one in trials if one.outcome is Outcome.INFEASIBLE]
        return _farther(limits, parts, closest_of(complete), level)
    for limit in limits:
        misses = [_miss(limit, part) for part in parts if limit.key in part]
        if _shows_above_0(misses, level):
            return f"{limit.text} is missed in {sum(m > 0.0 for m in misses)} of {len(misses)}"
    if len(goals) == 1:
        goal = goals[0]
        worse = _differences(
            [goal.loss(part) for part in parts],
            [goal.loss(part.values) for part in best.parts],
        )
        if _shows_above_0(worse, level):
            count = sum(d > 0.0 for d in worse)
            return f"{goal.key} is worse than in trial {best.number} in {count} of {len(worse)}"
    return ""


def _farther(
    limits: Sequence[Limit],
    parts: Sequence[Mapping[str, float]],
    closest: TrialRecord | None,
    level: float,
) -> str:
    if closest is None:
        return ""

    def total(part: Mapping[str, float]) -> float:
        return sum(max(_miss(limit, part), 0.0) for limit in limits if limit.key in part)

    farther = _differences(
        [total(part) for part in parts], [total(part.values) for part in closest.parts]
    )
    if not _shows_above_0(farther, level):
        return ""
    count = sum(d > 0.0 for d in farther)
    return f"farther from the targets than trial {closest.number} in {count} of {len(farther)}"


def _miss(limit: Limit, part: Mapping[str, float]) -> float:
    return limit.judge(part).miss


def _differences(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    pairs = zip(mine, theirs, strict=False)
    return [a - b for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


def _shows_above_0(values: Sequence[float], level: float) -> bool:
    if len(values) < _FEWEST or not any(values):
        return False
    p = wilcoxon(values, alternative="greater", zero_method="zsplit").pvalue
    # One large gain may outweigh many small losses, which ranks do not see.
    return bool(p < level) and float(np.mean(values)) > 0.0
