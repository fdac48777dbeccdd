"""The page, from the document and nothing else."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from batchpolicy.quantities import format_seconds
from batchpolicy_tuning.page import figures, forest, marks, tenants, timeline


def page(document: Mapping[str, Any]) -> str:
    """The HTML page that shows a document of ``batchpolicy_tuning.document``.

    Scripts, styles and data are inside; the page may not ask for anything outside, and
    runs no script but its own two: names from traces and files are text wherever they
    come. About 5 MB, nearly all of it plotly.js.
    """
    library, script = (text.replace("\r\n", "\n") for text in (_plotly(), _part("page.js")))
    plots: list[marks.Plot] = []
    loads = [_load(document, at, plots) for at in document["loads"]]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["words"] = words
    return environment.from_string(_part("page.html.jinja")).render(
        told=document,
        labels=[policy["label"] for policy in document["policies"]],
        loads=loads,
        plots=plots,
        command=shlex.join(["batchpolicy", *document["environment"]["argv"]]),
        arms=[marks.arm(i) for i in range(len(document["policies"]))],
        classes=list(_classes(document["workload"])),
        css=Markup(_part("page.css")),
        library=Markup(library),
        script=Markup(script),
        allowed=" ".join(_allowed(text) for text in (library, script)),
    )


def words(names: Sequence[str]) -> str:
    """Names as part of a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


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
    document: Mapping[str, Any], at: Mapping[str, Any], plots: list[marks.Plot]
) -> dict[str, Any]:
    """What the template shows of one load; its plots join the others."""

    def placed(plot: marks.Plot) -> marks.Plot:
        plots.append({**plot, "id": f"plot-{len(plots)}"})
        return plots[-1]

    return {
        "told": at,
        "matrix": forest.matrix(at),
        "forests": forest.forests(at),
        "sides": [forest.sides(policy) for policy in at["policies"]],
        "distributions": [
            [None if plot is None else placed(plot) for plot in row]
            for row in figures.distributions(document, at)
        ],
        "tenants": tenants.rows(at),
        "series": placed(figures.series(document, at)),
        "timeline": placed(timeline.timeline(document, at)),
    }


def _plotly() -> str:
    text: str = get_plotlyjs()
    return text


def _part(name: str) -> str:
    return resources.files("batchpolicy_tuning.page").joinpath(name).read_text(encoding="utf-8")


def _allowed(script: str) -> str:
    """How a content security policy names an inline script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
