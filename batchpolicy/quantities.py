"""Durations as people write them: ``500ms``, ``1.5s``, ``10min``, ``2h``."""

from __future__ import annotations

import difflib
import math
import re

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-zA-Zµ]*)\s*", re.IGNORECASE
)


def parse_seconds(text: str) -> float:
    """Seconds in ``text``: a number in seconds, or one with a unit; ``inf`` for no limit.

    Raises
    ------
    ValueError
        When the text is no number, or its unit is not us, ms, s, min, h or d.
    """
    if text.strip().lower() in {"inf", ".inf", "infinity"}:
        return math.inf
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration; write a number of seconds, or 500ms, 10min")
    number, unit = found.groups()
    if unit and unit not in _SECONDS:
        near = difflib.get_close_matches(unit.lower(), _SECONDS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown unit {unit!r} in {text!r}.{hint} Units: {', '.join(_SECONDS)}")
    return float(number) * _SECONDS[unit or "s"]


def format_seconds(seconds: float) -> str:
    """A duration for people, three significant digits: ``12.3 ms``, ``4.56 s``."""
    if not math.isfinite(seconds):
        return "-" if math.isnan(seconds) else "inf"
    # Rounded first, so that a hair under a millisecond is not a thousand microseconds.
    shown = float(f"{seconds:.3g}")
    least = {"h": 7200.0, "min": 120.0, "s": 1.0, "ms": 1e-3}
    unit = next((unit for unit, seconds in least.items() if abs(shown) >= seconds), "us")
    return f"{shown / _SECONDS[unit]:.3g} {unit}"
