"""Several admissions in one step: what picking requests one at a time would give.

A policy is asked once a step, but its accounts move with each admission. The helpers
are pure, and look as far as ``step.window``, beyond which nobody is admitted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from batchpolicy.policy import Ranking, Step
from batchpolicy.requests import BoolArray, FloatArray, IntArray
from batchpolicy.runner.order import Rows, SeqsOf, best_first


def within(
    ranking: Ranking,
    group: IntArray,
    room: FloatArray,
    charge: FloatArray | Callable[[Rows], FloatArray],
    step: Step,
) -> BoolArray:
    """Rows before which the charges of their group stay within its room.

    A row may start while the charges of the rows of its group that rank before it and
    may start sum up to at most its room. The first ``step.window`` such rows are marked.

    Parameters
    ----------
    ranking
        Order of the rows; those not admissible have no part.
    group
        Code of each row's group, such as its tenant, shape ``(n,)``; -1 is one as well.
    room
        What the row's group may take before it, shape ``(n,)``.
    charge
        What each row takes, shape ``(n,)``, not negative; or a function that says it of
        some rows, by their numbers.
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
        charges = charge(rows) if callable(charge) else charge[rows]
        if not spent and charges.sum() <= room[rows].min():
            # No group of the first rows can use up its room.
            allowed[rows] = True
            break
        open_[rows] = False
        over: list[int] = []
        for row, code, takes in zip(
            rows.tolist(), group[rows].tolist(), charges.tolist(), strict=True
        ):
            ahead = spent.get(code, 0.0)
            if ahead <= room[row]:
                allowed[row] = True
                left -= 1
                spent[code] = ahead + takes
            elif code not in over:
                over.append(code)
        for code in over:
            # Those behind with as little room may not start either.
            open_[(group == code) & (room < spent[code])] = False
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
    codes, levels = _levels(group[open_], level[open_])
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


def _levels(group: IntArray, level: FloatArray) -> tuple[IntArray, FloatArray]:
    """The groups that have rows, ascending, and the level of each."""
    place = group + 1
    levels = np.zeros(int(place.max(initial=0)) + 1)
    levels[place] = level
    found = np.flatnonzero(np.bincount(place))
    return found - 1, levels[found]


def knapsack(gain: FloatArray, demand: FloatArray, left: FloatArray) -> BoolArray:
    """Rows that together gain much within what is left of one or several resources.

    Rows are taken in their order as long as they fit; one that does not is passed. If a
    single row gains more than all of those, it is taken alone. With one resource, and the
    rows in order of gain by demand, that is at least half of the most that any choice
    gains; with ``k``, in order of gain by the sum of ``demand / left``, at least
    ``1 / (2 * k)``.

    Parameters
    ----------
    gain
        What each row is worth, shape ``(n,)``, not negative.
    demand
        What each row takes of each resource, shape ``(n, k)``, not negative.
    left
        How much there is of each, shape ``(k,)``.

    References
    ----------
    S. Gao et al., "Apt-Serve: Adaptive Request Scheduling on Hybrid Cache for Scalable LLM
    Inference Serving", SIGMOD 2025, for one resource.
    """
    taken = np.zeros(len(gain), dtype=np.bool_)
    room = left.astype(np.float64)
    for row, wants in enumerate(demand):
        if (wants <= room).all():
            taken[row] = True
            room -= wants
    alone = np.where((demand <= left).all(axis=1), gain, 0.0)
    if len(alone) and alone.max() > gain[taken].sum():
        taken[:] = False
        taken[alone.argmax()] = True
    return taken


def first_rows(ranking: Ranking, step: Step, k: int) -> Rows:
    """The ``k`` admissible rows that rank first, in their order."""
    if ranking.admissible is None:
        return best_first(ranking.benefit, ranking.tier, SeqsOf(step.waiting), k)
    return _best(ranking, ranking.admissible, step, k)


def _best(ranking: Ranking, among: BoolArray, step: Step, k: int) -> Rows:
    tier, seq = ranking.tier, SeqsOf(step.waiting)
    if among.all():
        return best_first(ranking.benefit, tier, seq, k)
    rows = np.flatnonzero(among)
    return rows[
        best_first(ranking.benefit[rows], None if tier is None else tier[rows], seq[rows], k)
    ]
