from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.runner.displacement import Room, just_enough, victim_order

ROOMS = st.builds(Room, st.just(1), st.integers(0, 6), st.integers(0, 6))


def covers(frees: list[Room], chosen: tuple[int, ...] | list[int], need: Room) -> bool:
    sums = [sum(frees[i][part] for i in chosen) for part in range(3)]
    return all(got >= wanted for got, wanted in zip(sums, need, strict=True))


def test_the_least_urgent_class_goes_first_then_the_last_tier_then_the_lowest_benefit() -> None:
    order = victim_order(
        priority=np.array([1, 5, 1, 1, 1]),
        tier=np.array([0, 0, 2, 0, 0]),
        keep=np.array([0.5, 9.0, 9.0, 0.1, 0.5]),
        seq=np.array([0, 1, 2, 3, 4]),
    )
    assert order.tolist() == [1, 2, 3, 4, 0]


def test_without_tiers_all_rows_are_in_one() -> None:
    zeros = np.zeros(3, dtype=np.int64)
    order = victim_order(zeros, None, np.array([2.0, 1.0, 1.0]), np.array([0, 1, 2]))
    assert order.tolist() == [2, 1, 0]


def test_a_victim_that_turns_out_not_to_be_needed_is_spared() -> None:
    frees = [Room(1, 1, 1), Room(1, 0, 1), Room(1, 8, 1)]
    assert just_enough(frees, Room(0, 8, 0)) == [2]
    assert just_enough(frees, Room(2, 0, 0)) == [0, 1]
    assert just_enough(frees, Room(0, 9, 0)) == [0, 2]


def test_nobody_goes_when_nothing_is_needed_or_all_of_them_are_not_enough() -> None:
    assert just_enough([Room(1, 1, 1)], Room(0, 0, 0)) == []
    assert just_enough([Room(1, 1, 1)], Room(0, -3, 0)) == []
    assert just_enough([Room(1, 1, 1)], Room(0, 2, 0)) is None
    assert just_enough([], Room(1, 0, 0)) is None


@given(
    st.lists(ROOMS, max_size=7),
    st.builds(Room, st.integers(0, 4), st.integers(-2, 20), st.integers(-2, 20)),
)
def test_just_enough_is_enough_and_no_more_and_takes_the_worst_that_will_do(
    frees: list[Room], need: Room
) -> None:
    chosen = just_enough(frees, need)
    everyone = range(len(frees))
    assert (chosen is None) == (not covers(frees, tuple(everyone), need))
    if chosen is None:
        return
    assert chosen == sorted(set(chosen))
    assert covers(frees, chosen, need)
    for left_out in chosen:
        assert not covers(frees, [i for i in chosen if i != left_out], need)
    # Nobody beyond the shortest front that is enough is touched.
    front = next(n for n in range(len(frees) + 1) if covers(frees, tuple(range(n)), need))
    assert all(i < front for i in chosen)
    # Of all choices that leave nobody out, it spares as many of the best as it can.
    minimal = [
        set(some)
        for size in range(front + 1)
        for some in combinations(range(front), size)
        if covers(frees, some, need)
    ]
    spared = [tuple(i not in some for i in reversed(range(front))) for some in minimal]
    assert tuple(i not in chosen for i in reversed(range(front))) == max(spared, default=())
