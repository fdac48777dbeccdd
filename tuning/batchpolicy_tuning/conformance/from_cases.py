"""Workloads of cases, under the policies that cases are compared under."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from batchpolicy_tuning.cases.reading import read_cases
from batchpolicy_tuning.cases.setting import setting_of
from batchpolicy_tuning.conformance.policies import BENEFIT, FCFS, STRICT_PRIORITY
from batchpolicy_tuning.conformance.problem import Problem

POLICIES = (FCFS, STRICT_PRIORITY, BENEFIT)


def problems_of(paths: Sequence[Path]) -> list[Problem]:
    """Each case of kind ``workload`` with its operator's settings, under each policy.

    Raises
    ------
    ConfigError
        With everything that is wrong in the files.
    """
    made: list[Problem] = []
    for case in read_cases(paths):
        if case.kind != "workload":
            continue
        for config in POLICIES:
            setting = setting_of(case, config)
            made.append(
                Problem(
                    name=case.id,
                    again="--random 0 " + " ".join(f"--cases {path}" for path in paths),
                    workload=setting.workload,
                    config=setting.config,
                    limits=setting.limits,
                    cost=setting.clock,
                )
            )
    return made
