from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.config import LimitSettings
from batchpolicy.policy import Limits
from batchpolicy.runner.giving_way import SHORT, chunk_giving_way
from tests.support.policies import Arrival
from tests.support.rig import Rig

BLOCK = 16


def chunk(left: list[int], waiting: list[int], budget: int, urgent: int = 0) -> int | None:
    """The first ``urgent`` of the waiting rows are of a better class."""
    better = np.arange(len(waiting)) < urgent
    return chunk_giving_way(np.array(left), np.array(waiting), better, budget, BLOCK)


@pytest.mark.parametrize(
    ("left", "waiting", "budget", "part"),
    [
        # 100 of 512 tokens go to the short one.
        ([32_000], [100], 512, 412),
        # Half of the step at most, however many would like to start.
        ([32_000], [100] * 9, 512, 256),
        # Only those that stand before the first long one.
        ([32_000], [100, 4_001, 100], 512, 412),
        # The short one finds its tokens anyway.
        ([800], [100], 1_000, None),
        # Not much shorter.
        ([2_048], [257], 2_048, None),
        # 20 are all that the first needs, so that the others have 196 each.
        ([20, 9_000, 8_000], [100], 512, 196),
        # A part is a block at least.
        ([1_000] * 8, [100], 64, BLOCK),
        ([], [100], 512, None),
        ([32_000], [], 512, None),
    ],
)
def test_a_long_prompt_leaves_short_ones_their_tokens(
    left: list[int], waiting: list[int], budget: int, part: int | None
) -> None:
    assert chunk(left, waiting, budget) == part


@given(
    st.lists(st.integers(1, 5_000), min_size=1, max_size=6),
    st.lists(st.integers(1, 600), max_size=6),
    st.integers(200, 3_000),
)
def test_what_is_left_is_enough_and_nobody_gives_more_than_half_nor_in_vain(
    left: list[int], waiting: list[int], budget: int
) -> None:
    part = chunk(left, waiting, budget)
    if part is None:
        return
    taken = sum(min(tokens, part) for tokens in left)
    room = 0
    for tokens in waiting:
        if tokens * SHORT > max(left):
            break
        room += tokens
    assert taken >= min(budget // 2, sum(left)) - len(left)
    if part > BLOCK:
        assert budget - taken >= min(room, budget // 2)
        assert budget - taken < min(room, budget // 2) + len(left)


@pytest.mark.parametrize(
    ("left", "waiting", "urgent", "budget", "part"),
    [
        # As long as the other, so that they share.
        ([32_000], [32_000], 1, 512, 256),
        ([9_000, 9_000], [32_000], 1, 512, 170),
        # All that it needs, where that leaves the part to compute it whole.
        ([32_000], [200], 1, 512, 312),
        # More than half for several of them, which short prompts of an equal class never get.
        ([32_000], [120, 120, 120], 3, 512, 152),
        # The third could not be computed whole.
        ([32_000], [150, 150, 150], 3, 512, 212),
        # The short one behind it has its tokens too.
        ([32_000], [200, 100], 1, 512, 212),
        # An equal that is not short ends the line.
        ([2_000], [1_000, 1_000], 1, 512, 256),
        # A part that leaves the second its tokens would cut the first.
        ([1, 1, 1, 18], [167, 13], 2, 200, None),
        # Nor may short ones cut it.
        ([32_000], [200, 120], 1, 512, 200),
        # Nothing to give way for: both fit.
        ([300], [200], 1, 512, None),
        ([], [200], 1, 512, None),
    ],
)
def test_a_prompt_of_a_worse_class_leaves_urgent_ones_their_tokens_however_long(
    left: list[int], waiting: list[int], urgent: int, budget: int, part: int | None
) -> None:
    assert chunk(left, waiting, budget, urgent) == part


@given(
    st.lists(st.integers(1, 5_000), min_size=1, max_size=6),
    st.lists(st.integers(1, 5_000), min_size=1, max_size=6),
    st.integers(200, 3_000),
)
def test_no_other_part_computes_more_of_the_first_urgent_prompt(
    left: list[int], waiting: list[int], budget: int
) -> None:
    def got(part: int) -> int:
        """What is computed of it, the part at most, after the running ones."""
        spare = budget - sum(min(tokens, part) for tokens in left)
        return min(waiting[0], part, max(spare, 0))

    part = chunk(left, waiting, budget, len(waiting))
    if part is None:
        assert got(budget) == min(waiting[0], budget) or sum(left) + waiting[0] <= budget
    elif part > BLOCK:
        best = max(got(other) for other in range(1, budget + 1))
        # The last of an uneven division.
        assert got(part) >= best - len(left) - 1


def crowded(**settings: bool) -> Rig:
    rig = Rig(Arrival(), max_token_budget=50, parts={"limits": LimitSettings(**settings)})
    rig.arrive("long", prompt=500)
    rig.plan()
    rig.runner.scheduled({"long": 50}, {"long": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    return rig


def test_the_engine_is_told_the_part_for_one_step_and_then_that_it_is_over() -> None:
    rig = crowded()
    rig.arrive("short", prompt=20)
    plan = rig.plan()
    assert (plan.admit, plan.limits) == (["short"], Limits(8, 50, 30))
    rig.runner.scheduled({"long": 30, "short": 20}, {"short": 0}, [])
    rig.runner.produced({"short": 1}, {}, 0.5)
    assert rig.plan().limits == Limits(8, 50, 50)
    assert rig.plan().limits is None


def test_a_long_prompt_stands_where_the_file_says_so() -> None:
    rig = crowded(long_prompts_give_way=False)
    rig.arrive("short", prompt=20)
    assert rig.plan().limits is None


def test_a_prompt_that_is_computed_whole_does_not_give_way() -> None:
    rig = Rig(Arrival(), max_token_budget=50, chunks=False)
    rig.arrive("long", prompt=500)
    rig.plan()
    rig.runner.scheduled({"long": 50}, {"long": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    rig.arrive("short", prompt=20)
    assert rig.plan().limits is None


def test_a_long_prompt_of_a_worse_class_gives_way_at_once_and_is_not_displaced() -> None:
    rig = Rig(Arrival(), max_token_budget=50)
    rig.arrive("batch", prompt=500, priority=5)
    rig.plan()
    rig.runner.scheduled({"batch": 50}, {"batch": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    rig.arrive("chat", prompt=400)
    plan = rig.plan()
    assert (plan.admit, plan.preempt, plan.limits) == (["chat"], [], Limits(8, 50, 25))


def test_nobody_gives_way_to_what_cannot_start_for_want_of_kv() -> None:
    rig = Rig(Arrival(), max_token_budget=50, preempt="never")
    rig.arrive("batch", prompt=500, priority=5)
    rig.plan()
    rig.runner.scheduled({"batch": 50}, {"batch": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    rig.arrive("chat", prompt=400)
    assert rig.plan(blocks=30).limits is None
