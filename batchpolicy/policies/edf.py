"""Earliest deadline first."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.deadlines import Lost, meetable, next_due_s, to_refuse
from batchpolicy.policy import Policy, Ranking, Step, Tags
from batchpolicy.requests import FloatArray, IntArray, Requests

# Benefit without a deadline, in seconds of slack: behind every deadline that somebody sets.
_NEVER_S = 1e12


class EarliestDeadlineFirst(Policy):
    """Serve first the request whose next deadline is nearest; lost ones after all others.

    Deadlines are the next token's by the TTFT or TPOT target, and that of the whole
    answer less the time that the output predicted to come takes at the last step's pace.
    One is lost when it has passed, or when the prompt alone would take longer than is
    left. A request that has lost all of its deadlines is relegated rather than chased,
    since it would make those behind it late as well. Under overload, relegated requests
    wait for as long as others come.

    References
    ----------
    C. L. Liu and J. W. Layland, "Scheduling Algorithms for Multiprogramming in a
    Hard-Real-Time Environment", J. ACM 20(1), 1973.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True)

    lost: Lost = "relegate"
    """Whether requests that can meet no deadline any more go behind all others, or by their
    deadlines as ever (chase), or end at once if they never started (refuse)."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        due_s = next_due_s if self.lost == "chase" else _meetable_due_s
        return -np.minimum(due_s(requests, step) - step.now_s, _NEVER_S)

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        return None if self.lost == "chase" else meetable(requests, step).lost.astype(np.int64)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        ranking = super().rank(waiting, step)
        refuse = to_refuse(waiting, step) if self.lost == "refuse" else None
        return ranking._replace(refuse=refuse)


def _meetable_due_s(requests: Requests, step: Step) -> FloatArray:
    return meetable(requests, step).due_s
