"""A policy that leaves nothing as it is, to hold engines to what a policy may ask for."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from batchpolicy.policy import Limits, Policy, Ranking, Step, Tags
from batchpolicy.requests import FloatArray, Requests

HELD_S = 0.1


class Restless(Policy):
    """The shortest first under limits that change, some held back for a while, some refused."""

    tags: ClassVar[Tags] = Tags(may_starve=True)

    longest_prompt: PositiveInt = 120
    """Prompt tokens beyond which a request is refused."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -requests.prompt_tokens.astype(np.float64)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        held = (waiting.seq % 3 == 0) & (step.now_s - waiting.arrival_s < HELD_S)
        return Ranking(
            self.benefit(waiting, step),
            admissible=~held,
            refuse=waiting.prompt_tokens > self.longest_prompt,
        )

    @override
    def limits(self, step: Step) -> Limits:
        turn = step.index // 3 % 4
        return Limits(2 + turn, 16 + 8 * turn, 8 + 8 * turn)
