"""The page of a comparison, from the document and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from batchpolicy.quantities import format_seconds
from batchpolicy_tuning.page import figures, forest, marks, shell, tenants, timeline


def page(document: Mapping[str, Any]) -> str:
    """The HTML page that shows a document of ``batchpolicy_tuning.document``."""
    plots = shell.Plots()
    loads = [_load(document, at, plots) for at in document["loads"]]
    return shell.rendered(
        "batchpolicy_tuning.page",
        "page.html.jinja",
        plots,
        arms=len(document["policies"]),
        told=document,
        labels=[policy["label"] for policy in document["policies"]],
        loads=loads,
        command=shlex.join(["batchpolicy", *document["environment"]["argv"]]),
        classes=list(_classes(document["workload"])),
    )


class Class(NamedTuple):
    """A class in the key of the plots, and among the facts."""

    name: str
    colour: str
    facts: tuple[str, str]


def _classes(workload: Mapping[str, Any]) -> Iterator[Class]:
    for i, (name, requests) in enumerate(workload["classes"].items()):
        shown = name or "without class"
        said = [f"{requests:,} requests"]
        for key, target_s in workload["targets"].get(name, {}).items():
            if isinstance(target_s, float | int):
                said.append(f"{key.removesuffix('_s').upper()} within {format_seconds(target_s)}")
        yield Class(shown, marks.class_colour(i), (shown, ", ".join(said)))


def _load(
    document: Mapping[str, Any], at: Mapping[str, Any], plots: shell.Plots
) -> dict[str, Any]:
    """What the template shows of one load; its plots join the others."""
    return {
        "told": at,
        "matrix": forest.matrix(at),
        "forests": forest.forests(at),
        "sides": [forest.sides(policy) for policy in at["policies"]],
        "distributions": [
            [None if plot is None else plots.place(plot) for plot in row]
            for row in figures.distributions(document, at)
        ],
        "tenants": tenants.rows(at),
        "series": plots.place(figures.series(document, at)),
        "timeline": plots.place(timeline.timeline(document, at)),
    }
