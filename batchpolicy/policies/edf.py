"""Earliest deadline first."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.policy import Policy, Step, Tags
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.step_cost import StepCost, StepShape

# Benefit without a deadline, in seconds of slack: behind every deadline that somebody sets.
_NEVER_S = 1e12
_SMALL, _LARGE = 512, 1024


class EarliestDeadlineFirst(Policy):
    """Serve first the request whose next deadline is nearest; lost ones after all others.

    A deadline is the next token's by the TTFT or TPOT target, or that of the whole
    answer, whichever comes first. It is lost when it has passed, or when the prompt
    alone would take longer than is left; such a request is relegated rather than
    chased, since it would make those behind it late as well. Under overload, relegated
    requests wait for as long as others come.

    References
    ----------
    C. L. Liu and J. W. Layland, "Scheduling Algorithms for Multiprogramming in a
    Hard-Real-Time Environment", J. ACM 20(1), 1973.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True)

    relegate: bool = True
    """Put lost deadlines behind those that can be met; false for the plain order."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        slack_s = _due_s(requests) - step.now_s
        return -np.minimum(slack_s, _NEVER_S)

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        return _lost(requests, step).astype(np.int64) if self.relegate else None


def _due_s(requests: Requests) -> FloatArray:
    return np.minimum(requests.next_token_due_s, requests.deadline_s)


def _lost(requests: Requests, step: Step) -> BoolArray:
    """Rows whose next deadline cannot be met any more."""
    needed_s = np.zeros(len(requests))
    if step.cost is not None:
        needed_s = _prefill_s(step.cost, requests.prefill_tokens)
    lost: BoolArray = step.now_s + needed_s > _due_s(requests)
    return lost


def _prefill_s(cost: StepCost, tokens: IntArray) -> FloatArray:
    """Time of prefills of so many tokens, each alone: a line through two sizes."""
    small_s, large_s = (
        cost(StepShape(prefill_tokens=n, attention=n * n / 2, sequences=1))
        for n in (_SMALL, _LARGE)
    )
    token_s = (large_s - small_s) / (_LARGE - _SMALL)
    seconds: FloatArray = np.where(tokens > 0, small_s + (tokens - _SMALL) * token_s, 0.0)
    return np.maximum(seconds, 0.0)
