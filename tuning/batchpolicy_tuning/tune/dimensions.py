"""One dimension of a search space, as a study file writes it or a field has it beside it."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel

from batchpolicy.document import Document, Loc, dotted
from batchpolicy.policy import Policy
from batchpolicy.quantities import parse_seconds
from batchpolicy.tune import Tune
from batchpolicy_tuning.tune.records import Value
from batchpolicy_tuning.tune.space import Parameter
from batchpolicy_tuning.tune.study_file import Range

TUNE = "tune"
_MOST_STEPS = 10_000


def dimension(
    document: Document, at: Loc, given: object, tune: Tune | None, integer: bool
) -> Parameter | None:
    """What may be chosen, without its name; a single value is one choice."""
    if given == TUNE:
        if tune is not None:
            return Parameter("", tune.low, tune.high, tune.log, integer)
        document.fault(at, f"{dotted(at)}: no range stands beside it; give low and high.")
        return None
    if isinstance(given, dict):
        read = document.validate(Range, _seconds(at, cast("dict[str, object]", given)), at)
        return None if read is None else _range(document, at, read, integer)
    listed = cast("list[object]", given) if isinstance(given, list) else None
    choices: list[object] = [given] if listed is None else listed
    values = [_second(at, one) for one in choices]
    if not values or not all(
        isinstance(one, bool | int | float | str | NoneType) for one in values
    ):
        document.fault(
            at,
            f"{dotted(at)}: expected a value, a list of some, or a mapping of low and high.",
        )
        return None
    if len({repr(one) for one in values}) < len(values):
        document.fault(at, f"{dotted(at)}: a value is listed twice.")
        return None
    plain = cast("list[Value]", values)
    made = Parameter("", choices=tuple(plain))
    if not made.ordered:
        return made
    return Parameter("", choices=tuple(sorted(cast("list[float]", plain))))


def _range(document: Document, at: Loc, read: Range, integer: bool) -> Parameter | None:
    low, high = read.low, read.high
    said = ""
    if not low < high:
        said = f"low {low:g} is not below high {high:g}"
    elif read.log and low <= 0.0:
        said = f"low is {low:g}; with log it has to be above 0"
    elif integer and not (low.is_integer() and high.is_integer()):
        said = "low and high have to be whole numbers"
    elif read.step is not None and read.log:
        said = "step and log exclude each other; list the values in place of both"
    elif read.step is not None and (high - low) / read.step > _MOST_STEPS:
        said = f"over {_MOST_STEPS:,} values; take a larger step"
    if said:
        document.fault(at, f"{dotted(at)}: {said}.")
        return None
    if read.step is None:
        return Parameter("", low, high, read.log, integer)
    count = int((high - low) / read.step + 1e-9) + 1
    values = [low + k * read.step for k in range(count)]
    return Parameter("", choices=tuple(int(v) if integer else v for v in values))


def _seconds(at: Loc, given: dict[str, object]) -> dict[str, object]:
    return {k: _second(at, v) if k in ("low", "high", "step") else v for k, v in given.items()}


def _second(at: Loc, given: object) -> object:
    """A number of seconds where the key is in seconds and the value has a unit."""
    if isinstance(given, str) and str(at[-1]).endswith("_s"):
        try:
            return parse_seconds(given)
        except ValueError:
            return given  # whoever reads it says what it wants
    return given


def ranges_of(
    model: type[BaseModel], prefix: str = "", off: bool = False
) -> Iterator[tuple[str, tuple[Tune, bool, bool]]]:
    """Ranges beside fields by key: the range, whether of whole numbers, whether off by default."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        default: object = field.get_default(call_default_factory=True)
        is_off = off or default is None
        for kind, notes in _kinds(field.annotation, tuple(field.metadata)):
            if not isinstance(kind, type):
                continue
            if issubclass(kind, BaseModel) and not issubclass(kind, Policy):
                yield from ranges_of(kind, f"{key}.", is_off)
            tune = next((one for one in notes if isinstance(one, Tune)), None)
            if tune is not None and issubclass(kind, int | float):
                yield key, (tune, issubclass(kind, int), is_off)


def _kinds(annotation: Any, notes: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The types of a union, each with all that it is annotated with."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        yield from _kinds(inner, (*notes, *more))
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _kinds(part, notes)
    else:
        yield annotation, notes
