"""Deadlines of requests, and which of them can still be met."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from batchpolicy.policy import Step
from batchpolicy.requests import BoolArray, FloatArray, Requests
from batchpolicy.step_cost import StepCost, StepShape
from batchpolicy.work_left import output_to_come

Lost = Literal["chase", "relegate", "refuse"]
"""What becomes of a request that has targets and can meet none of them any more."""

_SMALL, _LARGE = 512, 1024


class Deadlines(NamedTuple):
    """Of each request, when its next token should come, and whether it is too late for that."""

    due_s: FloatArray
    """For the nearest target that can still be met; inf where there is none. Shape ``(n,)``."""
    lost: BoolArray
    """Has missed a target, and has none left that it could meet. Shape ``(n,)``."""


def next_due_s(requests: Requests, step: Step) -> FloatArray:
    """When each request's next token should come, met or missed, shape ``(n,)``; inf for never.

    By the TTFT target, after the first token by the TPOT target; and by the deadline of
    the whole answer less the time that the output predicted to come takes at the last
    step's pace.
    """
    due_s = requests.next_token_due_s
    if _has_deadlines(requests):
        due_s = np.minimum(due_s, _last_start_s(requests, step))
    return due_s


def meetable(requests: Requests, step: Step) -> Deadlines:
    """Deadlines of each request without those that cannot be met any more.

    The first token is too late once its time has passed, or once the prompt alone takes
    longer than is left; so is an answer by its deadline. TPOT is a mean, which a late
    token does not decide, so that a request that puts out tokens never loses it.
    """
    due_s = requests.first_token_due_s
    lost = _missed(requests, step, due_s)
    if not requests.at_default("first_token_s"):
        first_s = requests.first_token_s
        silent = first_s != first_s
        if not silent.all():
            lost &= silent
            due_s = requests.next_token_due_s
    np.putmask(due_s, lost, np.inf)
    if _has_deadlines(requests):
        missed = _missed(requests, step, requests.deadline_s)
        due_s = np.minimum(due_s, np.where(missed, np.inf, _last_start_s(requests, step)))
        lost = (lost | missed) & (due_s == np.inf)
    return Deadlines(due_s, lost)


def to_refuse(requests: Requests, step: Step) -> BoolArray:
    """Lost requests that have never started, shape ``(n,)``."""
    started_s = requests.first_scheduled_s
    refuse: BoolArray = meetable(requests, step).lost & (started_s != started_s)
    return refuse


def _has_deadlines(requests: Requests) -> bool:
    return not requests.at_default("deadline_s") and bool((requests.deadline_s < np.inf).any())


def _last_start_s(requests: Requests, step: Step) -> FloatArray:
    """When the rest of each answer should begin to come, for its deadline."""
    if step.step_s != step.step_s:
        return requests.deadline_s
    return requests.deadline_s - output_to_come(requests, step) * step.step_s


def _missed(requests: Requests, step: Step, due_s: FloatArray) -> BoolArray:
    """Rows that are late, or whose prompts, each alone, take longer than until ``due_s``."""
    missed: BoolArray = due_s < step.now_s
    if step.cost is None or not len(requests):
        return missed
    longest = int(requests.prompt_tokens.max()) + int(requests.output_tokens.max())
    base_s, token_s = _prefill_line(step.cost)
    # Few are so near that their prompts decide.
    near = np.flatnonzero((due_s < step.now_s + base_s + token_s * longest) & ~missed)
    if len(near):
        tokens = requests.take(near).prefill_tokens
        needed_s = np.where(tokens > 0, np.maximum(base_s + token_s * tokens, 0.0), 0.0)
        missed[near] = step.now_s + needed_s > due_s[near]
    return missed


def _prefill_line(cost: StepCost) -> tuple[float, float]:
    """Seconds of a prefill by itself: of the step, and of each token; through two sizes."""
    small_s, large_s = (
        cost(StepShape(prefill_tokens=n, attention=n * n / 2, sequences=1))
        for n in (_SMALL, _LARGE)
    )
    token_s = max(large_s - small_s, 0.0) / (_LARGE - _SMALL)
    return small_s - _SMALL * token_s, token_s
