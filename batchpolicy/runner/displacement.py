"""Whom to displace: just enough running requests, the least urgent first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from batchpolicy.requests import FloatArray, IntArray

MAX_VICTIMS_A_STEP = 16
MAX_DISPLACED_A_REQUEST = 2
"""Past this, a request is not displaced for a more urgent one any more."""


class Room(NamedTuple):
    """Seats, KV blocks and tokens of a step."""

    seats: int
    blocks: int
    tokens: int


def victim_order(
    priority: IntArray, tier: IntArray | None, keep: FloatArray, seq: IntArray
) -> IntArray:
    """Rows in the order in which they would go.

    The least urgent class first, then the last tier, then the lowest benefit of
    keeping, then the latest submission.
    """
    last = np.zeros_like(seq) if tier is None else tier
    return np.lexsort((-seq, keep, -last, -priority))


def just_enough(frees: list[Room], need: Room) -> list[int] | None:
    """Places in ``frees`` whose room covers ``need``, or None if all of it does not.

    Taken from the front until it is enough; then whoever turned out not to be
    needed is spared, the last in the order first.
    """
    chosen: list[int] = []
    seats, blocks, tokens = need
    for place, room in enumerate(frees):
        if seats <= 0 and blocks <= 0 and tokens <= 0:
            break
        chosen.append(place)
        seats -= room.seats
        blocks -= room.blocks
        tokens -= room.tokens
    if seats > 0 or blocks > 0 or tokens > 0:
        return None
    for place in reversed(chosen):
        room = frees[place]
        if seats + room.seats <= 0 and blocks + room.blocks <= 0 and tokens + room.tokens <= 0:
            chosen.remove(place)
            seats += room.seats
            blocks += room.blocks
            tokens += room.tokens
    return chosen
