"""Highest response ratio next."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.policies.token_clock import OnTokenClock
from batchpolicy.policy import Step, Tags
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.work_left import work_left


class HighestResponseRatio(OnTokenClock):
    """Serve first the request whose wait is longest for what it needs.

    The ratio is ``(wait + service) / service``. Service is what is left to compute: the
    prompt beyond the prefix cache, and the output if somebody predicts it; beside predicted
    requests one without a prediction counts as they do on average. The wait is counted in
    the same tokens: what the engine has computed for others since the request came, so that
    the order is the same on a slow and on a fast engine. Of two that wait, the shorter goes
    first until the longer has waited as long for its size. While more comes than the engine
    can compute, short requests that have waited too pass a long one: ``bounds.max_wait_s``
    ends that. A running request's ratio goes on growing.

    References
    ----------
    P. Brinch Hansen, "An Analysis of Response Ratio Scheduling", IFIP Congress 1971.
    """

    tags: ClassVar[Tags] = Tags()

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        service = np.maximum(work_left(requests, step, self.output_weight), 1.0)
        return 1.0 + self._waited(requests) / service
