"""Priority with ageing."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from batchpolicy.policy import Policy, Step, Tags
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.tune import Tune


class Priority(Policy):
    """Serve the lowest priority number first; waiting raises a request level by level.

    With ``ageing_s: inf`` the order is strict, equal to vLLM's ``--scheduling-policy
    priority``, and whoever keeps the most urgent class busy starves the others.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True)

    ageing_s: Annotated[float, Field(gt=0, allow_inf_nan=True), Tune(1.0, 600.0, log=True)] = 30.0
    """Seconds of waiting that are worth one level of priority; inf for none."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        waited_s = step.now_s - requests.arrival_s
        return waited_s / self.ageing_s - requests.priority

    @override
    def native_order(self) -> str | None:
        return "priority" if self.ageing_s == float("inf") else None
