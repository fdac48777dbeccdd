from __future__ import annotations

import math

import pytest

from batchpolicy.quantities import format_seconds, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("1.5 s", 1.5),
        ("10min", 600.0),
        ("2h", 7200.0),
        ("3", 3.0),
        ("1e3us", 1e-3),
    ],
)
def test_a_duration_is_a_number_and_a_unit_and_seconds_without_one(
    text: str, seconds: float
) -> None:
    assert parse_seconds(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["inf", ".inf", "Infinity"])
def test_no_limit_is_written_inf(text: str) -> None:
    assert parse_seconds(text) == math.inf


@pytest.mark.parametrize("text", ["", "soon", "5 5s", "ms", "nan"])
def test_what_is_no_duration_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="500ms, 10min"):
        parse_seconds(text)


def test_an_unknown_unit_is_refused_with_the_nearest_and_all() -> None:
    with pytest.raises(
        ValueError, match=r"'mss' in '5mss'\. Did you mean 'ms'\? Units: us, ms, s"
    ):
        parse_seconds("5mss")


def test_people_see_three_digits_and_a_unit() -> None:
    assert [format_seconds(s) for s in (0.0123, 4.5612, 600.0, math.inf, math.nan)] == [
        "12.3 ms", "4.56 s", "10 min", "inf", "-",
    ]  # fmt: skip
