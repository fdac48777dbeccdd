from typing import Annotated, ClassVar

import numpy as np
from pydantic import PositiveFloat

from batchpolicy import FloatArray, Policy, Requests, Step, Tags, Tune


class LeastSlack(Policy):
    """Serve first the request whose next token is due soonest; those without a target last."""

    tags: ClassVar[Tags] = Tags(may_starve=True)

    scale_s: Annotated[PositiveFloat, Tune(0.05, 10.0, log=True)] = 0.5
    """Slack at which the benefit has fallen to a half, in seconds."""

    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        slack_s = np.maximum(requests.next_token_due_s - step.now_s, 0.0)
        # Without a target the slack is infinite, and the benefit 0.
        return self.scale_s / (self.scale_s + slack_s)
