"""The corridor: how far a tenant may lead the one served least, under any order."""

from __future__ import annotations

import numpy as np

from batchpolicy.picking import first_rows, within
from batchpolicy.policy import Ranking, Step
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.runner.order import Rows
from batchpolicy.terms import Fairness

_MANY_CLASSES = 1024


def hold_to_corridor(
    ranking: Ranking,
    waiting: Requests,
    fairness: Fairness,
    tokens: float,
    step: Step,
    *,
    in_class: bool = False,
) -> Ranking:
    """The ranking in which no tenant starts more than leads it ``tokens`` past the least served.

    A request may start while its tenant's counter, with what ranks before it, is at most
    ``tokens`` above the least counter of those that could start: who is held back by the
    ranking itself holds nobody back. Where a single tenant waits, all may.

    Parameters
    ----------
    ranking
        Order of ``waiting``, which are the rows of ``step.waiting``.
    fairness
        Counters of the tenants, in weighted tokens, and what a start is charged.
    tokens
        Width of the corridor, in weighted tokens.
    in_class
        Hold nobody back for requests of a worse priority, nor where no second tenant has any
        as urgent.
    """
    tenant = waiting.tenant
    if not len(tenant) or (tenant == tenant[0]).all():
        return ranking
    could_start = ranking.admissible
    if ranking.refuse is not None:
        could_start = ~ranking.refuse if could_start is None else could_start & ~ranking.refuse
    served = fairness.served(waiting)
    among = ranking._replace(admissible=could_start)
    allowed = _nobody_near(among, waiting, fairness, served, tokens, step)
    if allowed is not None:
        return ranking._replace(admissible=allowed)
    counted = served if could_start is None else np.where(could_start, served, np.inf)
    if in_class:
        level, levels = _levels(waiting.priority)
        least = np.full(levels, np.inf)
        np.minimum.at(least, level, counted)
        room: FloatArray = np.minimum.accumulate(least)[level]
        room[_alone(level, levels, tenant, could_start)] = np.inf
    else:
        room = np.full(len(served), counted.min())
    room += tokens
    room -= served

    def charge(rows: Rows) -> FloatArray:
        return fairness.price_of_admission(waiting.take(rows))

    allowed = within(among, tenant, room, charge, step)
    return ranking._replace(admissible=allowed)


def _nobody_near(
    ranking: Ranking,
    waiting: Requests,
    fairness: Fairness,
    served: FloatArray,
    tokens: float,
    step: Step,
) -> BoolArray | None:
    """The first rows, if even all of them take no tenant out of the corridor; else None."""
    spare = tokens - (served.max() - served.min())
    if spare < 0.0:
        return None
    rows = first_rows(ranking, step, step.window)
    first = waiting.take(rows)
    charges = fairness.price_of_admission(first)
    if charges.sum() > spare and np.bincount(first.tenant + 1, charges).max() > spare:
        return None
    allowed = np.zeros(len(waiting), dtype=np.bool_)
    allowed[rows] = True
    return allowed


def _alone(
    level: IntArray, levels: int, tenant: IntArray, could_start: BoolArray | None
) -> BoolArray:
    """Rows at whose level, or a better one, no second tenant could start."""
    if could_start is not None:
        level, tenant, every = level[could_start], tenant[could_start], level
    else:
        every = level
    most = np.iinfo(np.int64).max
    first, last = np.full(levels, most), np.full(levels, -most)
    np.minimum.at(first, level, tenant)
    np.maximum.at(last, level, tenant)
    alone: BoolArray = np.minimum.accumulate(first) >= np.maximum.accumulate(last)
    return alone[every]


def _levels(priority: IntArray) -> tuple[IntArray, int]:
    """Classes numbered from the best, 0, and how many numbers there are."""
    lowest, highest = int(priority.min()), int(priority.max())
    if highest - lowest < _MANY_CLASSES:
        return priority - lowest, highest - lowest + 1
    found, level = np.unique(priority, return_inverse=True)
    return level, len(found)
