"""The light engine with SGLang's steps against SGLang's own scheduler."""

from __future__ import annotations

import os

import pytest

from batchpolicy_sglang.replay import SglangReplay
from batchpolicy_tuning.conformance.comparison import Compare
from batchpolicy_tuning.conformance.workloads import random_problem

pytestmark = pytest.mark.engine

WORKLOADS = int(os.environ.get("BATCHPOLICY_WORKLOADS", "60"))


@pytest.fixture(scope="module")
def engine() -> SglangReplay:
    return SglangReplay()


@pytest.mark.parametrize("first", range(0, WORKLOADS, 10))
def test_step_plans_are_equal(first: int, engine: SglangReplay) -> None:
    compared = [
        Compare(lambda seed=seed: random_problem(seed))(engine)  # type: ignore[misc]
        for seed in range(first, min(first + 10, WORKLOADS))
    ]
    assert [(one.name, one.difference) for one in compared if one.difference] == []
    assert not all(one.left_out for one in compared)


@pytest.mark.parametrize("seed", [110, 190, 270])
def test_no_turn_is_taken_while_a_policy_holds_all_that_wait(
    seed: int, engine: SglangReplay
) -> None:
    compared = Compare(lambda: random_problem(seed))(engine)
    assert compared.difference is None
    assert not compared.left_out


@pytest.mark.parametrize("seed", [216])
def test_a_cap_that_a_policy_lowers_while_all_seats_are_taken_displaces_as_many_alike(
    seed: int, engine: SglangReplay
) -> None:
    compared = Compare(lambda: random_problem(seed))(engine)
    assert compared.difference is None
    assert not compared.left_out
