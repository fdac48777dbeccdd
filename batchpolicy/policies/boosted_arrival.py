"""Boosted arrival first."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, NonNegativeFloat
from typing_extensions import override

from batchpolicy.policies.token_clock import OnTokenClock
from batchpolicy.policy import Step, Tags
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.tune import Tune
from batchpolicy.work_left import work_left


class BoostedArrival(OnTokenClock):
    """Serve in order of arrival, the short ones as if they had come earlier.

    A request of size ``s`` is moved ahead by ``-boost_tokens * ln(1 - exp(-s / boost_tokens))``:
    many times ``boost_tokens`` for a tiny one, nearly nothing for one several times as large.
    The size is what is left to compute, of the output what is predicted, and the move is in
    the same tokens: so much computed for others since an arrival makes up for it. No later
    arrival thus passes anybody for longer than its own boost. A small ``boost_tokens`` is the
    order of arrival, a large one that of ``shortest-first``; the latencies of the unluckiest
    are best in between.

    References
    ----------
    G. Yu and Z. Scully, "Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1",
    Proc. ACM Meas. Anal. Comput. Syst. 8(2) (SIGMETRICS), 2024, for the boost; "Beyond
    Prediction" (UniBoost), ICML 2026 (arXiv 2606.18431), for its use in LLM serving.
    """

    tags: ClassVar[Tags] = Tags()

    boost_tokens: Annotated[float, Field(gt=0, le=1e15), Tune(1e3, 1e7, log=True)] = 200_000.0
    """Size below which a request is moved ahead by more than that, in prompt tokens."""
    output_weight: Annotated[NonNegativeFloat, Tune(0.1, 100.0, log=True)] = 8.0
    """What an output token counts, in prompt tokens."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        size = np.maximum(work_left(requests, step, self.output_weight), 1.0)
        ahead = np.log(-np.expm1(size / -self.boost_tokens))
        return self._waited(requests) - self.boost_tokens * ahead
