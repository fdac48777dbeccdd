"""The base of everything that a config file can name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from batchpolicy.quantities import parse_seconds


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that a union is of, without what they are annotated with."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _kinds(part)
    else:
        yield annotation


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
        kinds = set(_kinds(cls.model_fields[name].annotation))
        if isinstance(value, bool) and kinds <= {int, float, NoneType}:
            raise ValueError("expected a number, not a truth value")
        if isinstance(value, str) and kinds <= {int, float, NoneType} and kinds != {NoneType}:
            raise ValueError("expected a number")
        if kinds == {bool} and not isinstance(value, bool):
            raise ValueError("expected true or false")
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Component) or type(self) is not type(other):
            return NotImplemented
        return self._parameters() == other._parameters()

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))

    def _parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}
