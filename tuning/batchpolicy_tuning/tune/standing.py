"""Where the trials of a study stand, finished or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from batchpolicy_tuning.tune.importance import importances
from batchpolicy_tuning.tune.judging import Goal, best_of, binding, closest_of, pareto
from batchpolicy_tuning.tune.records import ENDED, VOID, TrialRecord
from batchpolicy_tuning.tune.space import Parameter


def standing(
    goals: Sequence[Goal], parameters: Sequence[Parameter], records: Sequence[TrialRecord]
) -> dict[str, Any]:
    """The fields of ``StudyResult`` that follow from the trials in the storage alone."""
    trials = tuple(one for one in records if one.outcome in ENDED)
    best = best_of(goals, trials)
    closest = closest_of(trials) if best is None else None
    return {
        "trials": trials,
        "outcomes": dict(sorted(Counter(one.outcome.value for one in trials).items())),
        "void_trials": sum(one.outcome in VOID for one in records),
        "best": None if best is None else best.number,
        "pareto": tuple(one.number for one in pareto(goals, trials)),
        "closest": None if closest is None else closest.number,
        "binding": binding(closest) if closest is not None and closest.targets else None,
        "importance": importances(goals, parameters, trials),
    }
