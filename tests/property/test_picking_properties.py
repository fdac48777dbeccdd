"""``within`` and ``turns`` against picking requests one at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.picking import turns, within
from batchpolicy.policy import Ranking, Step
from batchpolicy.runner.order import best_first
from batchpolicy.testing import make_requests, make_step


@st.composite
def queues(draw: st.DrawFn) -> tuple[Ranking, np.ndarray, np.ndarray, np.ndarray, Step]:
    """A ranking, and of each row its group, the group's level or room, and its charge."""
    n = draw(st.integers(0, 20))
    few = st.lists(st.integers(0, 3), min_size=n, max_size=n)
    group = np.array(draw(few), dtype=np.int64) - 1
    levels = draw(st.lists(st.integers(-2, 9).map(float), min_size=5, max_size=5))
    admissible = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n))
    ranking = Ranking(
        np.array(draw(few), dtype=np.float64),
        draw(st.none() | few.map(lambda tiers: np.array(tiers, dtype=np.int64))),
        None if admissible is None else np.array(admissible, dtype=np.bool_),
    )
    charge = np.array(draw(few), dtype=np.float64)
    waiting = make_requests(n)
    step = make_step(waiting=waiting, window=draw(st.integers(1, 25)))
    return ranking, group, np.array(levels)[group + 1], charge, step


def in_order(ranking: Ranking, seq: np.ndarray) -> list[int]:
    rows = best_first(ranking.benefit, ranking.tier, seq, len(seq)).tolist()
    return [r for r in rows if ranking.admissible is None or ranking.admissible[r]]


def allowed_one_at_a_time(
    ranking: Ranking, group: np.ndarray, room: np.ndarray, charge: np.ndarray, step: Step
) -> list[int]:
    spent = dict.fromkeys(group.tolist(), 0.0)
    taken: list[int] = []
    for row in in_order(ranking, step.waiting.seq):
        if spent[group[row]] <= room[row] and len(taken) < step.window:
            taken.append(row)
            spent[group[row]] += charge[row]
    return sorted(taken)


@given(queues(), st.data())
def test_within_marks_what_picking_one_at_a_time_would_take(
    queue: tuple[Ranking, np.ndarray, np.ndarray, np.ndarray, Step], data: st.DataObject
) -> None:
    ranking, group, room, charge, step = queue
    if data.draw(st.booleans(), label="rooms differ within a group"):
        room = room + data.draw(
            st.lists(st.integers(0, 4), min_size=len(group), max_size=len(group)).map(np.array)
        )
    expected = allowed_one_at_a_time(ranking, group, room, charge, step)
    for price in (charge, lambda rows: charge[rows]):
        assert np.flatnonzero(within(ranking, group, room, price, step)).tolist() == expected


@given(queues())
def test_turns_give_the_order_of_picking_one_at_a_time(
    queue: tuple[Ranking, np.ndarray, np.ndarray, np.ndarray, Step],
) -> None:
    ranking, group, level, charge, step = queue
    seq = step.waiting.seq
    reached = dict(zip(group.tolist(), level.tolist(), strict=True))
    left = in_order(ranking, seq)
    picked: list[int] = []
    while left and len(picked) < step.window:
        heads = {int(group[row]): row for row in reversed(left)}
        row = min(heads.values(), key=lambda r: (reached[int(group[r])], seq[r]))
        reached[int(group[row])] += charge[row]
        left.remove(row)
        picked.append(row)
    got = turns(ranking, group, level, charge, step)
    assert in_order(got, seq)[: len(picked)] == picked
