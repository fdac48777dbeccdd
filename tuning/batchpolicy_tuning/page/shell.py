"""What makes a page one file: scripts, styles and data inside, and nothing asked for outside."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from batchpolicy_tuning.page import marks

_HERE = "batchpolicy_tuning.page"


class Plots:
    """The plots of a page, in the order in which they are drawn."""

    def __init__(self) -> None:
        self.every: list[marks.Plot] = []

    def place(self, plot: marks.Plot) -> marks.Plot:
        """The plot with the id of its place on the page."""
        self.every.append({**plot, "id": f"plot-{len(self.every)}"})
        return self.every[-1]


def rendered(
    package: str,
    template: str,
    plots: Plots,
    *,
    arms: int,
    styles: Sequence[str] = (),
    **shown: Any,
) -> str:
    """A page from a template of ``package`` that extends ``base.html.jinja``.

    ``arms`` is how many settings or policies are told apart; ``styles`` are files of
    ``package`` that follow the common style sheet. The page runs no script but its own two:
    names from traces and files are text wherever they come. About 5 MB, nearly all of it
    plotly.js.
    """
    library, script = (text.replace("\r\n", "\n") for text in (_plotly(), _text(_HERE, "page.js")))
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=ChoiceLoader(
            [FunctionLoader(functools.partial(_template, one)) for one in (package, _HERE)]
        ),
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["words"] = words
    css = [_text(_HERE, "page.css"), *(_text(package, name) for name in styles)]
    return environment.get_template(template).render(
        **shown,
        plots=plots.every,
        arms=[marks.arm(i) for i in range(arms)],
        css=Markup("\n".join(css)),
        library=Markup(library),
        script=Markup(script),
        allowed=" ".join(_allowed(text) for text in (library, script)),
    )


def words(names: Sequence[str]) -> str:
    """Names as part of a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _plotly() -> str:
    text: str = get_plotlyjs()
    return text


def _template(package: str, name: str) -> str | None:
    return _text(package, name) if resources.files(package).joinpath(name).is_file() else None


def _text(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _allowed(script: str) -> str:
    """How a content security policy names an inline script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
