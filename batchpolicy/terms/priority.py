"""How important a request is."""

from __future__ import annotations

import numpy as np
from pydantic import PositiveFloat
from typing_extensions import override

from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.terms.term import Term


class PriorityTerm(Term):
    """The priority that the request asks for; strictly falling in its number.

    Distinct scores for all integers within 10 million of 0; beyond that,
    neighbours may score the same.
    """

    scale: PositiveFloat = 10.0
    """Distance from 0 at which half of the way to the end of the scale is gone."""

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        if requests.at_default("priority"):
            return np.full(len(requests), 0.5)
        priority = requests.priority
        score = np.abs(priority) + self.scale
        np.divide(priority, score, out=score)
        score -= 1.0
        score *= -0.5
        return score
