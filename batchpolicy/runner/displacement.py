"""Whom to displace: just enough running requests, the least urgent first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from batchpolicy.requests import BoolArray, FloatArray, IntArray

MAX_VICTIMS_A_STEP = 16


Key = IntArray | FloatArray | BoolArray


class Room(NamedTuple):
    """Seats, KV blocks and tokens of a step."""

    seats: int
    blocks: int
    tokens: int

    def less(self, other: Room) -> Room:
        """What is left of a need when ``other`` is there."""
        return Room(
            self.seats - other.seats, self.blocks - other.blocks, self.tokens - other.tokens
        )

    def covers(self, need: Room) -> bool:
        """Whether this is enough."""
        return (
            self.seats >= need.seats and self.blocks >= need.blocks and self.tokens >= need.tokens
        )


NOTHING = Room(0, 0, 0)


class Going(NamedTuple):
    """Rows in the order in which they would go, and which of them are equals."""

    rows: IntArray
    groups: IntArray
    """A number for each of ``rows``, ascending; equals have the same."""


def victim_order(classes: Sequence[Key], loses: IntArray, seq: IntArray) -> Going:
    """Rows in the order in which they would go.

    The least of the first of ``classes`` goes first, then that of the next. Among rows
    equal in all of them, whoever loses least goes first, then the latest submission.
    """
    order = np.lexsort((-seq, loses, *reversed(classes)))
    differs = np.zeros(len(order), dtype=np.int64)
    for key in classes:
        differs[1:] |= key[order[1:]] != key[order[:-1]]
    return Going(order, np.cumsum(differs))


def just_enough(frees: Sequence[Room], groups: Sequence[int], need: Room) -> list[int] | None:
    """Places in ``frees`` whose room covers ``need``, or None if all of it does not.

    Group by group from the front until it is enough. In the group with which it is,
    as few as will do: the first that covers what is left alone, or as long as nobody
    does, the one that frees most. Then whoever turned out not to be needed is spared,
    the last in the order first.
    """
    chosen: list[int] = []
    left, start = need, 0
    while start < len(frees) and not NOTHING.covers(left):
        stop = start
        after = left
        while stop < len(frees) and groups[stop] == groups[start]:
            after = after.less(frees[stop])
            stop += 1
        if NOTHING.covers(after):
            chosen += _few(frees, range(start, stop), left)
            break
        chosen += range(start, stop)
        left, start = after, stop
    chosen.sort()
    room = total(frees[place] for place in chosen)
    if not room.covers(need):
        return None
    for place in reversed(chosen.copy()):
        without = room.less(frees[place])
        if without.covers(need):
            chosen.remove(place)
            room = without
    return chosen


def _few(frees: Sequence[Room], places: Sequence[int], left: Room) -> list[int]:
    """Of places that cover ``left`` together, a few that do."""
    chosen: list[int] = []
    rest = list(places)
    while not NOTHING.covers(left):
        best = next((place for place in rest if frees[place].covers(left)), None)
        if best is None:
            best = max(rest, key=partial(_helps, frees, left))
        rest.remove(best)
        chosen.append(best)
        left = left.less(frees[best])
    return chosen


def _helps(frees: Sequence[Room], need: Room, place: int) -> tuple[int, int]:
    room = frees[place]
    return min(room.blocks, max(need.blocks, 0)), min(room.tokens, max(need.tokens, 0))


def total(rooms: Iterable[Room]) -> Room:
    """All of them together."""
    seats = blocks = tokens = 0
    for room in rooms:
        seats += room.seats
        blocks += room.blocks
        tokens += room.tokens
    return Room(seats, blocks, tokens)
