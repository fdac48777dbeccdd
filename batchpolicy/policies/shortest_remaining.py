"""Shortest remaining first."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, NonNegativeFloat
from typing_extensions import override

from batchpolicy.policies.shortest_first import ShortestFirst
from batchpolicy.policy import Step, Tags
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.tune import Tune


class ShortestRemaining(ShortestFirst):
    """Serve the request with the least left to compute, displacing one that has more left.

    What a running request has left counts like that of a waiting one, and displacing
    it costs all that it has computed a second time: it gives way only to who needs
    less than what it has left and lost together, and past a part of its predicted
    output to nobody. Nor does a request that nobody predicts, or one that outlives
    its prediction, whose rest is unknown. A long request waits for as long as short
    ones come: ``bounds.max_wait_s`` ends that.

    References
    ----------
    L. Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time
    Discipline", Oper. Res. 16, 1968; R. Shahout et al., "Don't Stop Me Now: Embedding
    Based Scheduling for LLMs" (TRAIL), ICLR 2025, for the part past which nobody is
    displaced.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True, preempts="benefit")

    recompute_weight: Annotated[NonNegativeFloat, Tune(0.1, 10.0, log=True)] = 1.0
    """What a token counts that displacement would have computed again, in prompt tokens."""
    committed_frac: Annotated[float, Field(ge=0, le=1), Tune(0.2, 1.0)] = 0.8
    """Part of its predicted output past which a request is not displaced any more."""

    @override
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray:
        predicted, out = running.predicted_output_tokens, running.output_tokens
        keep = self.benefit(running, step) + self.recompute_weight * running.computed_tokens
        # Not true of an unknown prediction either, which is NaN.
        early = out < self.committed_frac * predicted
        return np.where(early, keep, np.inf)
