"""The base of everything that a config file can name."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from batchpolicy.quantities import parse_seconds


class Component(BaseModel):
    """Validated, immutable parameters; private attributes hold state.

    Two components are equal when their types and parameters are: state, such
    as counters in a private attribute, takes no part. A parameter whose name
    ends in ``_s`` also accepts a duration with its unit, such as ``500ms``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _read_durations(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: parse_seconds(v) if isinstance(v, str) and str(k).endswith("_s") else v for k, v in data.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Component) or type(self) is not type(other):
            return NotImplemented
        return self._parameters() == other._parameters()

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))

    def _parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}
