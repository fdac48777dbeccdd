"""Whom a policy file lets be displaced."""

from __future__ import annotations

from typing import Any, Literal, Self, cast, get_args

from pydantic import GetJsonSchemaHandler, NonNegativeFloat, PositiveInt, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from batchpolicy.component import Component
from batchpolicy.nearest import near

Preempt = Literal["never", "class", "benefit"]


class Preemption(Component):
    """Who may be displaced to admit others; a bare word sets ``by`` alone."""

    by: Preempt
    """never; class: running requests of a strictly worse priority; benefit: those whose benefit
    of keeping is strictly less than the benefit of starting another, whatever their priority."""
    margin: NonNegativeFloat = 0.0
    """By how much more a request must gain, in the policy's unit; of ``by: benefit`` alone."""
    max_each: PositiveInt = 2
    """Times that one request may be displaced for others."""

    @model_validator(mode="after")
    def _margin_is_of_benefit(self) -> Self:
        if self.margin and self.by != "benefit":
            raise ValueError(f"margin belongs to by: benefit, not to by: {self.by}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """A word, or the mapping."""
        return {"anyOf": [{"enum": list(get_args(Preempt))}, handler(core_schema)]}


def read_preempt(given: Any) -> Any:
    """The mapping that a word stands for."""
    words = get_args(Preempt)
    listed = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
    if isinstance(given, str):
        if given not in words:
            raise ValueError(f"expected {listed}.{near(given, words)}")
        return {"by": given}
    if not isinstance(given, dict | Preemption):
        raise ValueError(f"expected {listed}, or a mapping")
    return cast(Any, given)
