"""How long a request has waited beside others of its tenant."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat
from typing_extensions import override

from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.terms.term import Term
from batchpolicy.tune import Tune


class Ageing(Term):
    """Age among the waiting requests of the same tenant: 1 for the oldest, less for later ones.

    The oldest of every tenant scores the same, however long it has waited and however
    many stand behind it, so that the backlog of a flood raises its tenant above nobody.
    """

    weight: Annotated[NonNegativeFloat, Tune(0.001, 1.0, log=True)] = 0.03
    """What being the oldest of a tenant is worth."""
    scale_s: Annotated[PositiveFloat, Tune(0.5, 300.0, log=True)] = 10.0
    """How much later than the oldest of its tenant a request that scores a half came, in
    seconds."""

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        waiting, tenant = step.waiting, requests.tenant
        # Who runs may belong to a tenant of which nobody waits; -1, none, has the last place.
        most = int(waiting.tenant.max(initial=-1))
        if requests is not waiting:
            most = max(most, int(tenant.max(initial=-1)))
        oldest_s = np.full(most + 2, np.inf)
        np.minimum.at(oldest_s, waiting.tenant, waiting.arrival_s)
        score: FloatArray = requests.arrival_s - oldest_s[tenant]
        if requests is not waiting:
            np.maximum(score, 0.0, out=score)
        score += self.scale_s
        return np.divide(self.scale_s, score, out=score)
