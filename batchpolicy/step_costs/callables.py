"""Any callable as a step cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import BeforeValidator, PrivateAttr, ValidationInfo, model_validator
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.errors import ConfigError
from batchpolicy.step_cost import OutsideCost, StepShape
from batchpolicy.step_costs.tables import in_folder

SAMPLE = StepShape(prefill_tokens=16, attention=128.0, decodes=1, decode_context=16, sequences=2)


def _placed(given: Any, info: ValidationInfo) -> Any:
    """``path.py:name`` with an absolute path; ``module:name`` as it is."""
    if not isinstance(given, str):
        return given
    where, _, name = given.rpartition(":")
    return f"{in_folder(where, info)}:{name}" if where.endswith(".py") else given


class CallableCost(OutsideCost):
    """Calls what stands at ``module:name`` or ``path.py:name`` with a ``StepShape``.

    It is a function of one argument that returns seconds, a ``StepCost``, or a class that
    makes one when called without arguments. How it behaves is its own affair: nothing here
    makes it monotone or knows where it was measured.
    """

    callable: Annotated[str, BeforeValidator(_placed)]
    """Where it is."""

    _call: Callable[[StepShape], float] | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _answers(self) -> Self:
        self.plain(SAMPLE)
        return self

    @override
    def plain(self, shape: StepShape) -> float:
        call = self._call
        if call is None:
            call = self._call = cost_at(self.callable)
        try:
            seconds = float(call(shape))
        except (TypeError, ValueError) as e:
            raise ConfigError(
                f"step cost {self.callable!r} cannot answer for {shape}: {e}. Expected a "
                "function of one StepShape that returns seconds."
            ) from e
        if not 0.0 < seconds < math.inf:
            if seconds == 0.0 and not shape.prefill_tokens + shape.decodes:
                return 0.0
            raise ConfigError(
                f"step cost {self.callable!r} says {seconds} for {shape}; expected seconds above 0"
            )
        return seconds

    def __getstate__(self) -> dict[Any, Any]:
        """Without the function itself, which another process finds again by its place."""
        return super().__getstate__() | {"__pydantic_private__": {"_call": None}}


def cost_at(place: str) -> Callable[[StepShape], float]:
    """What ``module:name`` or ``path.py:name`` is, ready to be called with a ``StepShape``.

    Raises
    ------
    ConfigError
        When it is not there or cannot be called.
    """
    found = registry.load("batchpolicy.step_costs", place)
    if isinstance(found, type):
        found = cast(object, found())
    if not callable(found):
        raise ConfigError(
            f"{place!r} is {found!r}, which cannot be called; expected a function of one "
            "StepShape that returns seconds, or a StepCost."
        )
    return cast("Callable[[StepShape], float]", found)


def is_place(text: str) -> bool:
    """Whether a text names an object rather than a file or a shipped thing."""
    where, colon, name = text.rpartition(":")
    return (
        bool(colon and where and name.replace(".", "_").isidentifier()) and not Path(text).exists()
    )
