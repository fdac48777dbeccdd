"""The corridor: how far a tenant may lead the one served least, under any order."""

from __future__ import annotations

from batchpolicy.picking import within
from batchpolicy.policy import Ranking, Step
from batchpolicy.requests import Requests
from batchpolicy.terms import Fairness


def hold_to_corridor(
    ranking: Ranking, waiting: Requests, fairness: Fairness, tokens: float, step: Step
) -> Ranking:
    """The ranking in which no tenant starts more than leads it ``tokens`` past the least served.

    A request may start while its tenant's counter, with what ranks before it, is at most
    ``tokens`` above the least counter of those that could start: who is held back by the
    ranking itself holds nobody back.

    Parameters
    ----------
    ranking
        Order of ``waiting``, which are the rows of ``step.waiting``.
    fairness
        Counters of the tenants, in weighted tokens, and what a start is charged.
    tokens
        Width of the corridor, in weighted tokens.
    """
    could_start = ranking.admissible
    if ranking.refuse is not None:
        could_start = ~ranking.refuse if could_start is None else could_start & ~ranking.refuse
    served = fairness.served(waiting)
    candidates = served if could_start is None else served[could_start]
    if not len(candidates):
        return ranking
    room = tokens - (served - candidates.min())
    charge = fairness.price_of_admission(waiting)
    allowed = within(ranking._replace(admissible=could_start), waiting.tenant, room, charge, step)
    return ranking._replace(admissible=allowed)
