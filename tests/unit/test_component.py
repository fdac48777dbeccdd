from __future__ import annotations

import math
from typing import Annotated, Any

import pytest
from pydantic import Field, PrivateAttr, ValidationError

from batchpolicy.component import Component


class Inner(Component):
    gap_s: float = 1.0
    """Length of a gap."""


class Part(Component):
    lambda_: Annotated[float, Field(alias="lambda", ge=0)] = 0.5
    wait_s: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 2.0
    count: int = 3
    inner: Inner = Inner()
    _seen: int = PrivateAttr(default=0)


def faults(**values: Any) -> dict[tuple[int | str, ...], str]:
    with pytest.raises(ValidationError) as caught:
        Part.model_validate(values)
    return {one["loc"]: one["msg"] for one in caught.value.errors()}


def test_durations_are_read_in_fields_that_end_in_s() -> None:
    assert Part.model_validate({"wait_s": "500ms", "inner": {"gap_s": "2min"}}) == Part(
        wait_s=0.5, inner=Inner(gap_s=120.0)
    )


def test_every_mistaken_field_is_reported_where_it_is() -> None:
    found = faults(
        **{"lambda": -1, "wait_s": "5 parsecs", "count": True, "inner": {"gap_s": "x"}, "more": 1}
    )
    assert set(found) == {("lambda",), ("wait_s",), ("count",), ("inner", "gap_s"), ("more",)}
    assert "'parsecs'" in found["wait_s",]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_must_be_finite(value: float) -> None:
    assert ("lambda",) in faults(**{"lambda": value})


def test_a_field_may_allow_infinity_and_then_still_no_nan() -> None:
    assert Part.model_validate({"wait_s": "inf"}).wait_s == math.inf
    assert faults(wait_s=math.nan) == {("wait_s",): "Value error, expected a number, not NaN"}


def test_an_alias_is_for_files_and_the_name_for_python() -> None:
    assert Part(lambda_=0.25) == Part.model_validate({"lambda": 0.25})


def test_infinite_parameters_survive_json() -> None:
    part = Part(wait_s=math.inf)
    assert Part.model_validate_json(part.model_dump_json(by_alias=True)) == part


def test_state_takes_no_part_in_equality_nor_in_the_hash() -> None:
    one, two = Part(), Part()
    two._seen = 5
    assert one == two and hash(one) == hash(two)
    assert one != Part(count=4)
    assert one != Inner()


def test_parameters_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Part().count = 4  # type: ignore[misc]


def test_the_text_below_a_field_is_its_help() -> None:
    assert Inner.model_fields["gap_s"].description == "Length of a gap."


class Strict(Component):
    number: int | None = None
    share: Annotated[float, Field(gt=0)] | None = None
    flag: bool = True


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"number": True}, "expected a number, not a truth value"),
        ({"share": False}, "expected a number, not a truth value"),
        ({"number": "12"}, "expected a number"),
        ({"share": "0.5"}, "expected a number"),
        ({"flag": 1}, "expected true or false"),
        ({"flag": "yes"}, "expected true or false"),
    ],
)
def test_a_value_of_another_kind_is_refused_however_it_could_be_read(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        Strict.model_validate(given)
