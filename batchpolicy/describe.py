"""What a policy is and which parameters it takes, as plain data for people and programs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from batchpolicy import registry
from batchpolicy.errors import BatchPolicyError
from batchpolicy.policy import Policy
from batchpolicy.tune import Tune

_KINDS = {
    str(float): "number",
    str(int): "whole number",
    str(bool): "true or false",
    str(Policy): "policy",
}
_WORDS = {"True": "true", "False": "false", "None": "null", "()": "[]"}
"""Defaults as a policy file says them, by their names in Python."""
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of a policy file; nested keys are joined by dots."""

    key: str
    default: str
    allowed: str
    searched: str
    help: str


def parameters(model: type[BaseModel], prefix: str = "") -> Iterator[Parameter]:
    """The parameters of a component, in the order of its fields, parts of parts included."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not Policy:
            yield from parameters(inner, f"{key}.")
            continue
        tune = next((one for one in field.metadata if isinstance(one, Tune)), None)
        yield Parameter(
            key=key,
            default=_default(field),
            allowed=_allowed(field),
            searched="" if tune is None else _range(tune),
            # One line, which tables wrap to their own width.
            help=" ".join((field.description or "").split()),
        )


def policy_facts(name: str, cls: type[Policy]) -> dict[str, Any]:
    """Everything about a policy class, as JSON can hold it."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return {
        "name": name,
        "summary": text.partition("\n")[0],
        "description": text,
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "may_starve": cls.tags.may_starve,
        "requires": sorted(cls.tags.requires),
        "native": cls.tags.native,
        "parameters": [
            {field: getattr(one, field) for field in Parameter.__dataclass_fields__}
            for one in parameters(cls)
        ],
    }


def installed_policies() -> Iterator[dict[str, Any]]:
    """Facts of each installed policy; of one that cannot be imported, its name and the error."""
    for name in registry.names(registry.POLICIES):
        try:
            yield policy_facts(name, registry.policy_class(name))
        except BatchPolicyError as e:
            yield {"name": name, "error": str(e)}


def _default(field: FieldInfo) -> str:
    value: object = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Policy):
        return registry.name_of(registry.POLICIES, type(value))
    return _WORDS.get(str(value), str(value))


def _allowed(field: FieldInfo) -> str:
    limits: list[tuple[str, Any]] = [
        (sign, getattr(one, word, None)) for one in field.metadata for word, sign in _SIGNS.items()
    ]
    bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
    return f"{_KINDS.get(str(field.annotation), '')} {bounds}".strip()


def _range(tune: Tune) -> str:
    return f"{tune.low:g} to {tune.high:g}{', log' if tune.log else ''}"
