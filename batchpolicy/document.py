"""What a file says, where it says it, and what is wrong with it."""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from batchpolicy import registry
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.nearest import near
from batchpolicy.policy import Policy
from batchpolicy.predictor import Predictor

Loc = tuple[str | int, ...]
"""Keys and list positions that lead to a value."""

_M = TypeVar("_M", bound=BaseModel)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


@dataclass(slots=True)
class Document:
    """Plain values of a file, the line of each, and the faults found so far."""

    path: Path
    value: object = None
    lines: dict[Loc, int] = field(default_factory=dict[Loc, int])
    faults: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    def fault(self, loc: Loc, text: str) -> None:
        """Note a fault at the nearest place that the file has."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        self.faults.append((self.lines.get(loc, 1), text))

    def validate(self, model: type[_M], value: object, loc: Loc = ()) -> _M | None:
        """The model of ``value``, which stands at ``loc``; None after noting its faults."""
        before = len(self.faults)
        try:
            made = model.model_validate(value)
        except ValidationError as e:
            for where, text in faults_of(e, model, value, loc):
                self.fault(where, text)
        except BatchPolicyError as e:
            self.fault(loc, str(e))
        except Exception as e:
            self.fault(loc, registry.cannot_be_made(model.__name__, model, e))
        else:
            for where, inside in _python_names(made, value, loc):
                self.fault(where, _unknown(where, inside))
            return made if len(self.faults) == before else None
        return None

    def raise_faults(self) -> None:
        """Raise one ConfigError for all faults, in the order of the file."""
        if self.faults:
            lines = [f"{self.path}:{line}: {text}" for line, text in sorted(self.faults)]
            raise ConfigError("\n".join(dict.fromkeys(lines)))


def faults_of(
    error: ValidationError, model: type[BaseModel], value: object, at: Loc = ()
) -> Iterator[tuple[Loc, str]]:
    """Place and text of each fault that pydantic found in ``value``, which stands at ``at``."""
    told = error.errors(include_url=False)
    for one in told:
        # Items that were refused are missing in a list; it is not they that are too few.
        if one["type"] == "too_short" and any(
            other["loc"][: len(one["loc"])] == one["loc"] for other in told if other is not one
        ):
            continue
        about_key = one["type"] in {"missing", "extra_forbidden"}
        loc, found = _walk(value, one["loc"], keep_last=about_key)
        place = (*at, *loc)
        context = one.get("ctx", {})
        cause = context.get("error")
        if one["type"] == "missing":
            yield place, f"{dotted(place)} is missing."
        elif one["type"] == "extra_forbidden":
            yield place, _unknown(place, _model_at(model, value, loc[:-1]))
        elif one["type"] in {"union_tag_invalid", "union_tag_not_found"}:
            yield place, _no_choice(place, found, context)
        elif isinstance(cause, BatchPolicyError):
            yield place, f"{dotted(place)}: {cause}"
        elif one["type"] == "too_short" and not found:
            yield place, f"{dotted(place)} is empty; expected at least {context['min_length']}."
        elif one["type"] == "int_parsing_size":
            yield place, f"{dotted(place)} is {short(found)}; expected a smaller integer."
        elif cause is not None and not place:
            yield place, _sentence(str(cause))
        elif cause is not None:
            yield place, f"{dotted(place)} is {short(found)}; {_sentence(str(cause))}"
        else:
            hint = ""
            if one["type"] in {"literal_error", "enum"} and isinstance(found, str):
                choices = re.findall(r"'([^']*)'", one["msg"])
                hint = near(found, choices) if len(choices) > 1 else ""
            yield place, f"{dotted(place)} is {short(found)}; {_expected(one['msg'])}{hint}"


def dotted(loc: Loc) -> str:
    """A place as people write it: ``policy.terms[0].weight``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".")


def short(value: object) -> str:
    """What was found, in a few words."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return _SHORT.repr(value)


def _walk(value: object, loc: Loc, keep_last: bool) -> tuple[Loc, object]:
    """The parts of ``loc`` that exist, and what is there.

    Pydantic adds parts of its own, such as the branch of a union.
    """
    kept: list[str | int] = []
    here: Any = value
    for place, part in enumerate(loc):
        try:
            here = None if isinstance(here, str) else here[part]
        except (LookupError, TypeError):
            if not (keep_last and place == len(loc) - 1):
                continue
        kept.append(part)
    return tuple(kept), here


def _expected(message: str) -> str:
    text = message.removeprefix("Input should be ").split(", unable to parse")[0]
    text = re.sub(
        r"a valid dictionary( or instance of \w+)?|an instance of \w+", "a mapping", text
    )
    text = text.replace("a valid tuple", "a list").replace("a valid integer", "an integer")
    text = re.sub(r"^(greater|less) than", r"a number \1 than", text.replace("a valid ", "a "))
    return _sentence(f"expected {text}" if message.startswith("Input should be ") else text)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _unknown(loc: Loc, model: type[BaseModel] | None) -> str:
    if model is None:
        return f"unknown key {dotted(loc)!r}."
    known = [one.alias or name for name, one in model.model_fields.items()]
    listed = f" Known: {', '.join(known)}." if known else " It has no parameters."
    return f"unknown key {dotted(loc)!r}.{near(str(loc[-1]), known)}{listed}"


def _no_choice(loc: Loc, found: object, context: Mapping[str, Any]) -> str:
    """What to say where a key has to choose one of several models, and does not."""
    # A field, or the function of that name which reads it.
    key = str(context["discriminator"]).strip("'").removesuffix("()")
    if not isinstance(found, dict):
        return f"{dotted(loc)} is {short(found)}; expected a mapping with {key!r}."
    if "tag" not in context:
        return f"{dotted((*loc, key))} is missing."
    tag = str(context["tag"])
    known = re.findall(r"'([^']*)'", str(context["expected_tags"]))
    listed = " or ".join(map(repr, known))
    return f"{dotted((*loc, key))} is {tag!r}; expected {listed}.{near(tag, known)}"


def _python_names(
    made: BaseModel, value: object, loc: Loc
) -> Iterator[tuple[Loc, type[BaseModel]]]:
    """Keys that are a field's name in Python where files have an alias, and of which model."""
    if not isinstance(value, dict):
        return
    given = cast("dict[str, object]", value)
    for name, one in type(made).model_fields.items():
        key = one.alias or name
        if key != name and name in given:
            yield (*loc, name), type(made)
        part = getattr(made, name)
        if isinstance(part, BaseModel):
            yield from _python_names(part, given.get(key), (*loc, key))


def _model_at(model: type[BaseModel] | None, value: object, loc: Loc) -> type[BaseModel] | None:
    """The model of what stands at ``loc`` in ``value``, where one class says so."""
    for place, part in enumerate(loc, start=1):
        if isinstance(part, str):
            fields = model.model_fields if model else {}
            found = [one for name, one in fields.items() if part in {name, one.alias}]
            inside = _models_in(found[0].annotation) if found else []
            here = _walk(value, loc[:place], keep_last=False)[1]
            told = [one for one in inside if len(inside) == 1 or _tells_apart(one, here)]
            model = told[0] if len(told) == 1 else None
        if model is not None and inspect.isabstract(model):
            # A term or a policy, which names its class.
            model = _named(model, _walk(value, loc[:place], keep_last=False)[1])
    return model


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _tells_apart(model: type[BaseModel], value: object) -> bool:
    """Whether a word in ``value`` names this one of several models."""
    given = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    return any(
        get_origin(one.annotation) is Literal and given.get(name) in get_args(one.annotation)
        for name, one in model.model_fields.items()
    )


def _named(base: type[BaseModel], value: object) -> type[BaseModel]:
    """The class that is built from ``{name: ...}`` where a ``base`` is expected."""
    name = cast("dict[str, object]", value).get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return base
    try:
        if base is Policy:
            return registry.policy_class(name)
        return (registry.predictor_class if base is Predictor else registry.term_class)(name)
    except BatchPolicyError:
        return base
