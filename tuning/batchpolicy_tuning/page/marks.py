"""Colours, dashes and symbols: everything that is told by colour is told by another mark too.

Colours are names of CSS variables, which the page's script looks up: they differ
between the light and the dark page.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Plot = dict[str, Any]
"""``title`` and ``note`` for people, ``height`` in pixels, ``data`` and ``layout`` for plotly."""

_DASHES = ("6px,3px", "solid", "2px,2px", "9px,3px,2px,3px", "12px,4px")
# The same for SVG, in the key beside the plots.
_STROKES = ("6 3", "none", "2 2", "9 3 2 3", "12 4")
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "cross")
_COLOURS = 8


class ArmMarks(NamedTuple):
    """How the lines of a policy look."""

    colour: str
    dash: str
    stroke: str
    symbol: str


def arm(i: int) -> ArmMarks:
    """Marks of a policy; the first, the baseline, is grey."""
    k = i % len(_DASHES)
    return ArmMarks(
        f"--arm-{0 if i == 0 else (i - 1) % (_COLOURS - 1) + 1}",
        _DASHES[k],
        _STROKES[k],
        _SYMBOLS[k],
    )


def class_colour(i: int) -> str:
    """Colour of a class."""
    return f"--class-{i % 6}"


def text(words: str) -> str:
    """A text that plotly shows as it is: it would take tags and entities for its own."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def short(value: float) -> float:
    """Six digits: more than a screen shows, in a smaller file."""
    return float(f"{value:.6g}")
