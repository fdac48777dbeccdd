"""How near a request's targets are."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat
from typing_extensions import override

from batchpolicy.deadlines import Lost, meetable, next_due_s, to_refuse
from batchpolicy.policy import Step
from batchpolicy.requests import BoolArray, FloatArray, Requests
from batchpolicy.terms.term import Term
from batchpolicy.tune import Tune


class Urgency(Term):
    """How close the nearest target is: 1 when due, halving every ``half_life_s`` before.

    Targets are those of the next token (TTFT, then TPOT), and the deadline of the whole
    answer less the time that the output predicted to come takes at the last step's pace.

    A target that cannot be met any more, as it has passed or the prompt alone takes
    longer, makes nobody urgent: the request stands as if it had not been set, behind
    those whose targets are near. One that was started late is as urgent by its TPOT target
    as others. ``lost`` says otherwise.
    """

    weight: Annotated[NonNegativeFloat, Tune(0.01, 10.0, log=True)] = 2.0
    """What a request that is due is worth."""
    half_life_s: Annotated[PositiveFloat, Tune(0.05, 10.0, log=True)] = 0.5
    """Slack that halves the score, in seconds."""
    lost: Lost = "relegate"
    """Whether a request that can meet none of its targets any more is not urgent, keeps the
    urgency of one that is due (chase), or ends at once if it never started (refuse)."""

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        if requests.at_default("ttft_slo_s", "deadline_s", "first_token_s"):
            # Nobody has a target, but for those of TPOT after a first token.
            return np.zeros(len(requests))
        if self.lost == "chase":
            score = step.now_s - next_due_s(requests, step)
        else:
            score = step.now_s - meetable(requests, step).due_s
        np.minimum(score, 0.0, out=score)
        score /= self.half_life_s
        return np.exp2(score, out=score)

    @override
    def refuse(self, waiting: Requests, step: Step) -> BoolArray | None:
        return to_refuse(waiting, step) if self.lost == "refuse" else None
