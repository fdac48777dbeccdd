"""The engines by name, which nothing here imports."""

from __future__ import annotations

from importlib.util import find_spec

LIGHT = "light"
TWINS = {"vllm": LIGHT, "sglang": "light-sglang"}
"""Light engines that plan as the real ones do."""


def engine_here() -> str:
    """The real engine that is installed here, of which there is one at most, else light."""
    return next((name for name in TWINS if find_spec(name) is not None), LIGHT)
