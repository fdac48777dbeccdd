"""The base of everything that a config file can name."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from batchpolicy.quantities import parse_seconds

_NUMBERS = {str(int), str(float), str(int | None), str(float | None)}


class Component(BaseModel):
    """Validated, immutable parameters; private attributes hold state.

    Two components are equal when their types and parameters are: state, such
    as counters in a private attribute, takes no part. A parameter whose name
    ends in ``_s`` also accepts a duration with its unit, such as ``500ms``.
    No parameter may be NaN; one may be infinite where its field says
    ``allow_inf_nan=True``. The string below a field is its help.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    # Of each field by itself, so that one mistake hides no other.
    @field_validator("*", mode="before")
    @classmethod
    def _read_value(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if isinstance(value, str) and name.endswith("_s"):
            return parse_seconds(value)
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("expected a number, not NaN")
        if isinstance(value, bool) and str(cls.model_fields[name].annotation) in _NUMBERS:
            raise ValueError("expected a number, not a truth value")
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Component) or type(self) is not type(other):
            return NotImplemented
        return self._parameters() == other._parameters()

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))

    def _parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}
