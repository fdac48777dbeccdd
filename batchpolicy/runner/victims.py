"""In which order running requests would go, and who stands above whom."""

from __future__ import annotations

import numpy as np

from batchpolicy.policy import Step
from batchpolicy.preemption import Preemption
from batchpolicy.requests import BoolArray, IntArray, Requests
from batchpolicy.runner.displacement import Going, Key, victim_order
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.losses import recomputed_tokens, would_be_late

Standing = tuple[float, ...]
"""Whoever has the greater one may displace whoever has the less."""


class Victims:
    """Running rows, the first to go in front.

    By class: the worst priority, then the last tier, then the lowest benefit of keeping
    where the policy has one of its own. By benefit: the last tier, then the lowest
    benefit of keeping. Among equals, first those whose targets this does not break,
    then whoever has least to compute again, then the latest submission.
    """

    def __init__(self, running: Requests, step: Step, guard: Guard, rule: Preemption) -> None:
        self._running = running
        self._step = step
        self._max_each = rule.max_each
        tier, keep = guard.keep(running, step)
        equal = np.zeros(len(running))
        by_benefit = rule.by == "benefit"
        if keep is None and by_benefit:
            ranking = guard.standing(running, step)
            # Under a policy that fails nobody is known to be worth less than another.
            keep = np.full(len(running), np.inf) if ranking is None else ranking.benefit
        self.may_go: BoolArray = np.isfinite(equal if keep is None else keep)
        last: Key = equal if tier is None else -tier
        kept = equal if keep is None else keep + rule.margin
        self._classes: list[Key] = [last] if by_benefit else [-running.priority, last]
        self._kept = kept
        self._standing = (last, kept) if by_benefit else (-running.priority,)

    def order(self, frees: IntArray) -> Going:
        """All rows, each of which ``frees`` so many blocks."""
        return self._order([*self._classes, self._kept], frees)

    def order_of_need(self, frees: IntArray) -> Going:
        """The same for want of blocks: in class and tier, who was preempted often goes last."""
        worn = self._running.preemptions >= self._max_each
        return self._order([*self._classes, worn, self._kept], frees)

    def _order(self, keys: list[Key], frees: IntArray) -> Going:
        running, step = self._running, self._step
        loses = recomputed_tokens(running, frees, step.kv_block_tokens)
        late = would_be_late(running, loses, step)
        return victim_order([*keys, late], loses, running.seq)

    def standings(self, rows: IntArray) -> list[Standing]:
        """What rows stand for, ascending where they are in ``order``."""
        return list(zip(*(key[rows].tolist() for key in self._standing), strict=True))


def challenges(
    waiting: Requests, step: Step, guard: Guard, rule: Preemption
) -> list[Standing] | None:
    """What waiting rows stand for; None if nobody is to go for any of them."""
    if rule.by != "benefit":
        return [(-priority,) for priority in waiting.priority.tolist()]
    # Not what ``rank`` says, which may be on a scale of its own.
    ranking = guard.standing(waiting, step)
    if ranking is None:
        return None
    last: Key = np.zeros(len(waiting)) if ranking.tier is None else -ranking.tier
    return list(zip(last.tolist(), ranking.benefit.tolist(), strict=True))
