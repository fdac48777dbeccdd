"""JSON schema of policy files, for editors; made on request."""

from __future__ import annotations

import math
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from batchpolicy import registry
from batchpolicy.policy import Policy
from batchpolicy.predictor import Predictor
from batchpolicy.terms import Term

_PLACE = "#/$defs/"
_DURATION = {
    "type": "string",
    "pattern": r"^\s*([0-9.]+([eE][-+]?[0-9]+)?\s*(us|ms|s|min|h|d)?|\.?inf|infinity)\s*$",
}
_ELSEWHERE = {"type": "string", "pattern": ":", "description": "module:Class, or file.py:Class"}


def file_schema(file: type[BaseModel]) -> dict[str, Any]:
    """Schema of ``file``, its policy being one of those installed, or one from elsewhere.

    Raises
    ------
    ConfigError
        When an installed policy, predictor or term cannot be imported.
    """
    policies = {name: registry.policy_class(name) for name in registry.names(registry.POLICIES)}
    terms = {name: registry.term_class(name) for name in registry.names(registry.TERMS)}
    predictors = {
        name: registry.predictor_class(name) for name in registry.names(registry.PREDICTORS)
    }
    models: list[type[BaseModel]] = [
        file, Policy, Term, Predictor,
        *policies.values(), *terms.values(), *predictors.values(),
    ]  # fmt: skip
    keys, schema = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)],
        ref_template=_PLACE + "{model}",
    )
    defs = cast("dict[str, dict[str, Any]]", schema["$defs"])
    for one in defs.values():
        _accept_durations(one)

    def place(model: type[BaseModel]) -> str:
        return str(keys[model, "validation"]["$ref"]).removeprefix(_PLACE)

    def named(classes: dict[str, type[Any]]) -> dict[str, Any]:
        own = [_with_name(defs[place(cls)], {"const": name}) for name, cls in classes.items()]
        other = {"properties": {"name": _ELSEWHERE}, "required": ["name"]}
        return {"anyOf": [{"enum": list(classes)}, _ELSEWHERE, *own, {"type": "object", **other}]}

    # All first, as they are made of the parameters that stand there until then.
    choices = named(terms), named(policies), named(predictors)
    defs[place(Term)], defs[place(Policy)], defs[place(Predictor)] = choices
    whole = defs.pop(place(file))
    whole["properties"]["policy"] = {"$ref": _PLACE + place(Policy)}
    whole["properties"]["predictor"] = {"$ref": _PLACE + place(Predictor)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "$defs": defs}


def _with_name(schema: dict[str, Any], name: dict[str, Any]) -> dict[str, Any]:
    properties = {"name": name, **schema.get("properties", {})}
    return {**schema, "properties": properties, "required": ["name", *schema.get("required", [])]}


def _accept_durations(schema: dict[str, Any]) -> None:
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties", {}))
    for key, one in properties.items():
        default = one.get("default")
        if isinstance(default, float) and not math.isfinite(default):
            del one["default"]  # JSON has no word for it
        if key.endswith("_s") and one.get("type") == "number":
            number = {k: one.pop(k) for k in list(one) if k == "type" or "imum" in k}
            one["anyOf"] = [number, _DURATION]
