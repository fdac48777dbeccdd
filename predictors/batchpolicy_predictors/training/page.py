"""A calibration plot as a page for a browser, with everything inside it."""

from __future__ import annotations

import html
import importlib
from collections.abc import Sequence
from typing import Any

from batchpolicy.errors import ConfigError
from batchpolicy.predictor import LEVELS
from batchpolicy_predictors.training.evaluation import Judged

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px/1.5 sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }}
table {{ border-collapse: collapse }} td, th {{ padding: .2em .8em .2em 0; text-align: right }}
td:first-child, th:first-child {{ text-align: left }}</style></head><body>
<h1>{title}</h1>
"""


def plotting() -> Any:
    """The library that draws.

    Raises
    ------
    ConfigError
        When it is not installed.
    """
    try:
        return importlib.import_module("plotly.graph_objects")
    except ImportError as e:
        raise ConfigError(
            "--html needs plotly, which is not installed here: pip install 'batchpolicy[tuning]'"
        ) from e


def page(title: str, judged: Sequence[Judged], columns: Sequence[str], cells: Any) -> str:
    """The part of answers within each quantile against its level, and the figures as a table.

    ``cells`` makes the cells of a row of a ``Quality``; ``columns`` stand over them.
    """
    draw = plotting()
    parts = [_HEAD.format(title=html.escape(title))]
    for number, one in enumerate(judged):
        figure = draw.Figure()
        figure.add_scatter(
            x=[0, 1], y=[0, 1], mode="lines", name="as it should be",
            line={"color": "#999999", "dash": "dot"},
        )  # fmt: skip
        for name, found in one.by_predictor.items():
            figure.add_scatter(
                x=LEVELS.tolist(), y=list(found.coverage), mode="lines+markers", name=name
            )
        figure.update_layout(
            template="plotly_white",
            height=480,
            xaxis={"title": "level of the quantile", "range": [0, 1]},
            yaxis={"title": "part of the answers within it", "range": [0, 1.02]},
        )
        parts.append(f"<h2>{html.escape(one.title)}: {one.rows:,} rows</h2>")
        parts.append(
            figure.to_html(
                full_html=False,
                include_plotlyjs=number == 0,
                div_id=f"plot-{number}",
                config={"displaylogo": False},
            )
        )
        heads = "".join(f"<th>{html.escape(column)}</th>" for column in ("", *columns))
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(found))
            + "</tr>"
            for name, found in one.by_predictor.items()
        )
        parts.append(f"<table><tr>{heads}</tr>{rows}</table>")
        if one.note:
            parts.append(f"<p>{html.escape(one.note)}</p>")
    return "\n".join([*parts, "</body></html>\n"])
