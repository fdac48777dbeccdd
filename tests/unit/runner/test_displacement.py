from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.runner.displacement import Room, just_enough, total, victim_order

ROOMS = st.builds(Room, st.just(1), st.integers(0, 6), st.integers(0, 6))
NEEDS = st.builds(Room, st.integers(0, 4), st.integers(-2, 20), st.integers(-2, 20))


def covers(frees: list[Room], chosen: tuple[int, ...] | list[int], need: Room) -> bool:
    return total(frees[i] for i in chosen).covers(need)


def blocks(*freed: int) -> list[Room]:
    return [Room(1, n, 1) for n in freed]


def test_the_first_class_decides_then_the_next_then_the_loss_then_the_latest() -> None:
    going = victim_order(
        [np.array([1, 0, 1, 1, 1, 1]), np.array([0.5, 9.0, 0.1, 0.5, 0.5, 0.5])],
        loses=np.array([7, 99, 99, 3, 7, 9]),
        seq=np.arange(6),
    )
    assert going.rows.tolist() == [1, 2, 3, 4, 0, 5]
    assert going.groups.tolist() == [0, 1, 2, 2, 2, 2]


def test_a_victim_that_turns_out_not_to_be_needed_is_spared() -> None:
    frees, each_alone = [Room(1, 1, 1), Room(1, 0, 1), Room(1, 8, 1)], [0, 1, 2]
    assert just_enough(frees, each_alone, Room(0, 8, 0)) == [2]
    assert just_enough(frees, each_alone, Room(2, 0, 0)) == [0, 1]
    assert just_enough(frees, each_alone, Room(0, 9, 0)) == [0, 2]


def test_of_equals_the_first_that_is_enough_alone_goes() -> None:
    frees, equals = blocks(1, 2, 4, 5, 9), [0] * 5
    assert just_enough(frees, equals, Room(0, 2, 0)) == [1]
    assert just_enough(frees, equals, Room(0, 3, 0)) == [2]
    assert just_enough(frees, equals, Room(1, 0, 0)) == [0]


def test_of_equals_the_one_that_frees_most_goes_when_nobody_is_enough_alone() -> None:
    frees, equals = blocks(1, 2, 4, 5, 9), [0] * 5
    # 9 of the 11, and the first that frees the other 2.
    assert just_enough(frees, equals, Room(0, 11, 0)) == [1, 4]
    assert just_enough(frees, equals, Room(0, 21, 0)) == [0, 1, 2, 3, 4]


def test_who_is_less_urgent_goes_even_where_an_equal_of_others_would_fit_better() -> None:
    # The first group frees 10, of which 3 would do; the second is not touched.
    assert just_enough(blocks(10, 3), [0, 1], Room(0, 3, 0)) == [0]
    # It frees too little, and what it frees is of no use beside one of the second.
    assert just_enough(blocks(2, 3, 9), [0, 1, 1], Room(0, 8, 0)) == [2]
    assert just_enough(blocks(2, 3, 9), [0, 1, 1], Room(0, 5, 0)) == [0, 1]


def test_nobody_goes_when_nothing_is_needed_or_all_of_them_are_not_enough() -> None:
    assert just_enough([Room(1, 1, 1)], [0], Room(0, 0, 0)) == []
    assert just_enough([Room(1, 1, 1)], [0], Room(0, -3, 0)) == []
    assert just_enough([Room(1, 1, 1)], [0], Room(0, 2, 0)) is None
    assert just_enough([], [], Room(1, 0, 0)) is None


@st.composite
def grouped(draw: st.DrawFn) -> tuple[list[Room], list[int]]:
    frees = draw(st.lists(ROOMS, max_size=7))
    steps = draw(st.lists(st.integers(0, 1), min_size=len(frees), max_size=len(frees)))
    return frees, np.cumsum(steps).tolist()


@given(grouped(), NEEDS)
def test_just_enough_is_enough_and_no_more_from_the_least_urgent_groups_that_will_do(
    given_rows: tuple[list[Room], list[int]], need: Room
) -> None:
    frees, groups = given_rows
    chosen = just_enough(frees, groups, need)
    everyone = range(len(frees))
    assert (chosen is None) == (not covers(frees, tuple(everyone), need))
    if chosen is None:
        return
    assert chosen == sorted(set(chosen))
    assert covers(frees, chosen, need)
    # No part of it is enough: it would be if somebody could be left out.
    for left_out in chosen:
        assert not covers(frees, [i for i in chosen if i != left_out], need)
    # Nobody beyond the groups that are enough together is touched.
    ends = [i + 1 for i, (a, b) in enumerate(pairwise(groups)) if a != b]
    fronts = (tuple(range(n)) for n in [0, *ends, len(frees)])
    front = next(some for some in fronts if covers(frees, some, need))
    assert set(chosen) <= set(front)


@given(st.lists(ROOMS, max_size=7), NEEDS)
def test_of_rows_that_differ_in_urgency_as_many_of_the_best_as_can_be_are_spared(
    frees: list[Room], need: Room
) -> None:
    chosen = just_enough(frees, list(range(len(frees))), need)
    if chosen is None:
        return
    front = next(n for n in range(len(frees) + 1) if covers(frees, tuple(range(n)), need))
    minimal = [
        set(some)
        for size in range(front + 1)
        for some in combinations(range(front), size)
        if covers(frees, some, need)
    ]
    spared = [tuple(i not in some for i in reversed(range(front))) for some in minimal]
    assert tuple(i not in chosen for i in reversed(range(front))) == max(spared, default=())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 30))
def test_of_equals_one_goes_where_one_is_enough_and_never_more_than_the_fewest(
    freed: list[int], need: int
) -> None:
    frees = blocks(*sorted(freed))
    chosen = just_enough(frees, [0] * len(frees), Room(0, need, 0))
    if chosen is None:
        return
    fewest = next(
        size
        for size in range(len(frees) + 1)
        if any(
            covers(frees, some, Room(0, need, 0)) for some in combinations(range(len(frees)), size)
        )
    )
    assert len(chosen) == fewest
    if fewest == 1:
        assert frees[chosen[0]].blocks == min(n for n in freed if n >= need)
