"""First come, first served."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from batchpolicy.policy import Policy, Step, Tags
from batchpolicy.requests import FloatArray, Requests


class FCFS(Policy):
    """Serve in order of arrival, as engines do by themselves."""

    tags: ClassVar[Tags] = Tags(native="fcfs")

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        # Waited time, not arrival: benefits must not depend on the clock's origin.
        return step.now_s - requests.arrival_s
