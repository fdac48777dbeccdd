"""A gate before the queue, so that prefills start together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from typing_extensions import override

from batchpolicy.policy import Ranking, Step, Tags
from batchpolicy.requests import BoolArray, FloatArray, Requests
from batchpolicy.tune import Tune
from batchpolicy.wrappers.wrapper import Wrapper

_Frac = Annotated[float, Field(ge=0.0, le=1.0)]


class BatchForming(Wrapper):
    """Start prefills together: hold the queue back until it is worth interrupting who decodes.

    Held requests start when the first of these is true:

    - the engine has room to spare: nothing runs (unless ``hold_idle``), or it is neither
      busy for ``busy_frac`` of the last seconds nor has ``kv_used_frac`` of its KV in use;
    - ``min_waiting`` of them wait that have a seat, and nobody who runs is within
      ``tpot_slack_s`` of missing the target of its next token;
    - one has waited for ``max_hold_s``, or for ``ttft_frac`` of its TTFT target.

    Then all may start, in the order of the inner policy, for as long as some prompt is
    being computed: a batch too large for one step is not torn, and who comes meanwhile
    joins it. Then the gate closes again. Where even the oldest request has waited longer
    than ``max_hold_s``, as under overload, nobody is held. Bounds go before the gate.

    References
    ----------
    R. Ao et al., "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory
    Constraints", arXiv 2504.11320 (WAIT).
    """

    tags: ClassVar[Tags] = Tags()
    neutral: ClassVar[Mapping[str, Any] | None] = {"min_waiting": 1, "tpot_slack_s": 0.0}

    min_waiting: Annotated[PositiveInt, Tune(1, 64, log=True)] = 4
    """Requests that start together."""
    max_hold_s: Annotated[PositiveFloat, Tune(0.01, 5.0, log=True)] = 0.2
    """Longest wait of a request for others to come, in seconds."""
    ttft_frac: Annotated[float, Field(gt=0.0, le=1.0), Tune(0.1, 1.0)] = 0.5
    """Part of its TTFT target that a request may wait for others."""
    busy_frac: Annotated[_Frac, Tune(0.0, 1.0)] = 0.5
    """Share of the last seconds in which steps ran, from which on requests are held."""
    kv_used_frac: Annotated[_Frac, Tune(0.0, 1.0)] = 0.5
    """Share of the KV cache in use from which on they are held as well."""
    tpot_slack_s: Annotated[NonNegativeFloat, Tune(0.001, 1.0, log=True)] = 0.0
    """Time before a running request's next token is due in which the length of the queue does
    not open the gate, in seconds; 0 for never."""
    hold_idle: bool = False
    """Hold requests also while nothing runs."""

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        ranking = super().rank(waiting, step)
        if not len(waiting) or not self._has_to_hold(step) or self._forms(step.running):
            return ranking
        opens_s = float(self._latest_start_s(waiting).min())
        if step.now_s >= opens_s or self._is_enough(len(waiting), step):
            return ranking
        held: BoolArray = np.zeros(len(waiting), dtype=np.bool_)
        return ranking._replace(admissible=held, wake_s=min(opens_s, ranking.wake_s))

    def _has_to_hold(self, step: Step) -> bool:
        """Whether the engine has so much to do that holding may pay."""
        if not len(step.running):
            return self.hold_idle
        used = 1.0 - step.free_kv_blocks / max(step.total_kv_blocks, 1)
        # Nobody is held while nothing is measured, which NaN is.
        return step.busy_frac >= self.busy_frac or used >= self.kv_used_frac

    def _forms(self, running: Requests) -> bool:
        """Whether a prompt is being computed, or one has been in the step before."""
        starting = (running.prefill_tokens > 0) | (running.output_tokens <= 1)
        return bool(starting.any())

    def _is_enough(self, waiting: int, step: Step) -> bool:
        if min(waiting, step.seats) < min(self.min_waiting, step.max_running):
            return False
        slack_s = step.running.next_token_due_s - step.now_s
        # Who is late already is not saved by waiting.
        return not ((slack_s >= 0.0) & (slack_s < self.tpot_slack_s)).any()

    def _latest_start_s(self, waiting: Requests) -> FloatArray:
        """When each request has been held for long enough."""
        hold_s = np.full(len(waiting), self.max_hold_s)
        # Who was preempted has had its first token, and waits for the next.
        fresh = np.isnan(waiting.first_token_s)
        np.minimum(hold_s, self.ttft_frac * waiting.ttft_slo_s, out=hold_s, where=fresh)
        hold_s += waiting.arrival_s
        return hold_s
