"""Shortest first."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import NonNegativeFloat
from typing_extensions import override

from batchpolicy.policy import Policy, Step, Tags
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.tune import Tune
from batchpolicy.work_left import work_left


class ShortestFirst(Policy):
    """Serve first the request with the least to compute: its prompt, and its output if predicted.

    Prompt tokens found in the prefix cache cost nothing. Output counts where somebody
    predicts it; ``max_tokens`` is a ceiling that few answers reach. Beside predicted requests
    one without a prediction counts as they do on average. A long request waits for as long as
    short ones come: ``bounds.max_wait_s`` ends that.

    References
    ----------
    L. Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time
    Discipline", Oper. Res. 16, 1968.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True)

    output_weight: Annotated[NonNegativeFloat, Tune(0.1, 100.0, log=True)] = 1.0
    """What an output token counts, in prompt tokens."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -work_left(requests, step, self.output_weight)
