"""Several admissions in one step: what picking requests one at a time would give.

A policy is asked once a step, but its accounts move with each admission. Both helpers
are pure and look as far as ``step.window``, beyond which nobody is admitted.
"""

from __future__ import annotations

import heapq

import numpy as np

from batchpolicy.policy import Ranking, Step
from batchpolicy.requests import BoolArray, FloatArray, IntArray
from batchpolicy.runner.order import Rows, best_first


def within(
    ranking: Ranking, group: IntArray, room: FloatArray, charge: FloatArray, step: Step
) -> BoolArray:
    """Rows before which the charges of their group stay within its room.

    A row may start while the charges of the rows of its group that rank before it
    sum up to at most ``room``; one that may not counts like one that does. The first
    ``step.window`` such rows are marked.

    Parameters
    ----------
    ranking
        Order of the rows; those not admissible have no part.
    group
        Code of each row's group, such as its tenant, shape ``(n,)``; -1 is one as well.
    room
        What the row's group may still take, shape ``(n,)``, equal within a group.
    charge
        What each row takes, shape ``(n,)``, not negative.
    """
    open_ = room >= 0.0
    if ranking.admissible is not None:
        open_ &= ranking.admissible
    allowed = np.zeros(len(group), dtype=np.bool_)
    spent: dict[int, float] = {}
    left = step.window
    while left > 0:
        rows = _best(ranking, open_, step, left)
        if not len(rows):
            break
        open_[rows] = False
        for row, code in zip(rows.tolist(), group[rows].tolist(), strict=True):
            ahead = spent.get(code, 0.0)
            if ahead <= room[row]:
                allowed[row] = True
                left -= 1
            elif ahead < np.inf:
                # Nobody behind this row of its group may start either.
                open_[group == code] = False
                ahead = np.inf
            spent[code] = ahead + float(charge[row])
    return allowed


def turns(
    ranking: Ranking, group: IntArray, level: FloatArray, charge: FloatArray, step: Step
) -> Ranking:
    """The ranking in which the group of least level always comes next, charged as it is picked.

    Within a group the given order holds; of groups of one level, the one whose next
    row was submitted first is picked.

    Parameters
    ----------
    ranking
        Order within the groups; those not admissible have no part.
    group
        Code of each row's group, shape ``(n,)``; -1 is one as well.
    level
        What the row's group was charged so far, shape ``(n,)``, equal within a group.
    charge
        What each row adds to the level of its group when picked, shape ``(n,)``, not negative.
    """
    n = len(group)
    benefit = np.full(n, -1.0)
    if not n:
        return ranking._replace(benefit=benefit, tier=None)
    open_ = np.ones(n, dtype=np.bool_) if ranking.admissible is None else ranking.admissible
    codes, at = np.unique(group[open_], return_index=True)
    levels = level[open_][at]
    # Heads are found when a level is reached: few of many groups ever have a turn.
    heap = list(zip(levels.tolist(), [-1] * len(codes), codes.tolist(), strict=True))
    heapq.heapify(heap)
    queues: dict[int, list[int]] = {}
    for place in range(min(step.window, int(open_.sum()))):
        while heap[0][2] not in queues:
            reached, _, code = heapq.heappop(heap)
            rows = _best(ranking, open_ & (group == code), step, step.window)
            queues[code] = rows.tolist()[::-1]
            heapq.heappush(heap, (reached, int(step.waiting.seq[queues[code][-1]]), code))
        reached, _, code = heapq.heappop(heap)
        row = queues[code].pop()
        benefit[row] = n - place
        if queues[code]:
            head = int(step.waiting.seq[queues[code][-1]])
            heapq.heappush(heap, (reached + float(charge[row]), head, code))
    return ranking._replace(benefit=benefit, tier=None)


def _best(ranking: Ranking, among: BoolArray, step: Step, k: int) -> Rows:
    rows = np.flatnonzero(among)
    tier, seq = ranking.tier, step.waiting.seq
    return rows[
        best_first(ranking.benefit[rows], None if tier is None else tier[rows], seq[rows], k)
    ]
