from __future__ import annotations

import math

import pytest

from batchpolicy_tuning.tune.space import POLICY, Parameter, Space

CONDITIONAL = Space(
    (
        Parameter(POLICY, choices=("fcfs", "benefit")),
        Parameter("benefit:lambda", 0.01, 10.0, log=True, of="benefit"),
        Parameter("max_num_seqs", choices=(16, 32, 64)),
    )
)


def test_parameters_of_a_policy_exist_only_where_it_is_chosen() -> None:
    assert CONDITIONAL.conditional
    assert [one.name for one in CONDITIONAL.active("fcfs")] == [POLICY, "max_num_seqs"]
    assert CONDITIONAL.at([0.0, 0.5, 0.99]) == {POLICY: "fcfs", "max_num_seqs": 64}
    found = CONDITIONAL.at([0.5, 0.5, 0.0])
    assert found[POLICY] == "benefit"
    assert found["benefit:lambda"] == pytest.approx(math.sqrt(0.01 * 10.0))
    assert CONDITIONAL.inside(found)
    assert not CONDITIONAL.inside({**found, POLICY: "fcfs"})
    assert not CONDITIONAL.inside({**found, "benefit:lambda": 11.0})
    assert not CONDITIONAL.inside({POLICY: "benefit", "max_num_seqs": 16})


def test_the_grid_is_every_combination_under_every_policy() -> None:
    found = list(CONDITIONAL.grid())
    assert len(found) == 3 + 4 * 3
    assert all(CONDITIONAL.inside(one) for one in found)
    levels = sorted({one["benefit:lambda"] for one in found if one[POLICY] == "benefit"})  # type: ignore[type-var]
    assert levels == pytest.approx([0.01, 0.1, 1.0, 10.0])


def test_combinations_that_no_engine_starts_with_are_in_no_grid() -> None:
    space = Space(
        (Parameter("a", choices=(1, 2)), Parameter("b", choices=(1, 2))),
        allowed=lambda params: params["a"] != params["b"],
    )
    assert [tuple(one.values()) for one in space.grid()] == [(1, 2), (2, 1)]


def test_whole_numbers_have_equal_parts_of_the_unit_interval() -> None:
    one = Parameter("n", 3, 5, integer=True)
    assert [one.at(part) for part in (0.0, 0.33, 0.34, 0.66, 0.67, 0.999)] == [3, 3, 4, 4, 5, 5]
    assert one.levels() == [3, 4, 5]
    assert one.size == 3
    assert Parameter("x", 0.0, 1.0).size == math.inf
    assert Parameter("n", 16, 256, log=True, integer=True).at(0.5) == 64


def test_choices_that_are_numbers_have_neighbours_for_a_sampler() -> None:
    numbers = Parameter("n", choices=(16, 64, 256))
    assert [numbers.encode(one) for one in numbers.choices] == [0, 1, 2]
    assert numbers.decode(2) == 256
    words = Parameter("w", choices=("a", "b"))
    assert words.encode("b") == "b"
    assert words.decode("b") == "b"
