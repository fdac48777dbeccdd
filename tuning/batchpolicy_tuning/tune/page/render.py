"""The page of a study, from its result and nothing else."""

from __future__ import annotations

import shlex
from itertools import groupby
from typing import Any, cast

import yaml

from batchpolicy_tuning.page import shell
from batchpolicy_tuning.tune.page import fronts, history, importances, slices, tables
from batchpolicy_tuning.tune.page.arms import arms
from batchpolicy_tuning.tune.page.looks import LOOKS
from batchpolicy_tuning.tune.result import Conclusion, StudyResult
from batchpolicy_tuning.tune.summary import heading

_MOODS = {
    Conclusion.WINNER: "won",
    Conclusion.NOTHING_FEASIBLE: "lost",
}


def page(result: StudyResult) -> str:
    """The HTML page of a study; what it shows is in ``study.json``."""
    plots = shell.Plots()
    shown = arms(result)
    gains = tables.gains(result, shown)
    said = groupby(result.summary, key=lambda line: line.startswith(" "))
    return shell.rendered(
        "batchpolicy_tuning.tune.page",
        "study.html.jinja",
        plots,
        arms=len(shown),
        styles=["study.css"],
        told=result,
        shown=shown,
        looks=LOOKS,
        mood=_MOODS.get(result.conclusion, "open"),
        heading=heading(result),
        summary=[(detail, [line.strip() for line in lines]) for detail, lines in said],
        histories=[plots.place(one) for one in history.histories(result)],
        fronts=[plots.place(one) for one in fronts.fronts(result, shown)],
        by_parameter=[plots.place(one) for one in fronts.by_parameter(result)],
        importances=[plots.place(one) for one in importances.bars(result)],
        unsaid=[
            f"{importances.heading(one)}: {one.reason}" for one in result.importance if one.reason
        ],
        slices=[plots.place(one) for one in slices.slices(result, shown)],
        gains=gains,
        labels=[arm.label for arm in shown if arm.held_out is not None],
        targets=tables.targets(result, shown),
        scopes=tables.scopes(shown),
        trials=tables.trials(result, shown),
        workloads=[
            (one.name, f"load {one.load:g} of {one.saturation_requests_per_s:.4g} requests/s")
            for one in result.workloads
        ],
        command=shlex.join(["batchpolicy", *result.environment.get("argv", [])]),
        study=_yaml(result),
    )


def _yaml(result: StudyResult) -> str:
    told = dict(result.study)
    text: str = cast(Any, yaml).safe_dump(told, sort_keys=False, allow_unicode=True)
    return text
