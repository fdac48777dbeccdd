"""How little a request has left to compute."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat
from typing_extensions import override

from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.terms.term import Term
from batchpolicy.tune import Tune
from batchpolicy.work_left import work_left


class Shortness(Term):
    """How little is left to compute: 1 for nothing, a half at ``scale_tokens``, strictly falling.

    Counted are the prompt tokens that are not in the prefix cache, and the output where
    somebody predicts it; beside predicted requests one without counts as they do on average.
    """

    weight: Annotated[NonNegativeFloat, Tune(0.001, 1.0, log=True)] = 0.015
    """What a request with nothing left to compute is worth."""
    scale_tokens: Annotated[PositiveFloat, Tune(50.0, 20_000.0, log=True)] = 1000.0
    """Work at which the score has fallen to a half, in tokens."""
    output_weight: Annotated[NonNegativeFloat, Tune(0.1, 100.0, log=True)] = 1.0
    """What an output token counts, in prompt tokens."""

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        score = work_left(requests, step, self.output_weight)
        score += self.scale_tokens
        return np.divide(self.scale_tokens, score, out=score)
