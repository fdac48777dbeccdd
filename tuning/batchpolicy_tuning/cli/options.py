"""Options of the ``ab`` command that are more than a number."""

from __future__ import annotations

import math

from batchpolicy import registry
from batchpolicy.errors import ConfigError

_LOADS = (0.01, 10.0)


def parse_margin(text: str) -> float:
    """The part that ``5%`` is.

    Raises
    ------
    ConfigError
        When it is no percentage over 0 and under 100.
    """
    try:
        percent = float(text.removesuffix("%")) if text.endswith("%") else math.nan
    except ValueError:
        percent = math.nan
    if not 0.0 < percent < 100.0:
        raise ConfigError(f"--margin: {text!r} is no percentage over 0%, under 100%; write 5%")
    return percent / 100.0


def parse_loads(text: str) -> list[float]:
    """The loads in ``0.9,1.1``, in that order.

    Raises
    ------
    ConfigError
        When one is no number from 0.01 to 10, or comes twice.
    """
    loads: list[float] = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not (0.0 < number < math.inf):
            raise ConfigError(
                f"--load: {part.strip()!r} is no positive number; write 0.9 or 0.9,1.1"
            )
        least, most = _LOADS
        if not least <= number <= most:
            raise ConfigError(f"--load: {number:g} is outside {least:g} to {most:g}")
        if number in loads:
            raise ConfigError(f"--load: {number:g} is given twice.")
        loads.append(number)
    return loads


def only_engine() -> str:
    """The engine that is installed; ``vllm`` when there are several."""
    known = registry.names(registry.ENGINES)
    return known[0] if len(known) == 1 else "vllm"
