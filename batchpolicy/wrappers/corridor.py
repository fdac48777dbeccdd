"""Fairness between tenants with a bound, around any order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from batchpolicy.corridor import hold_to_corridor
from batchpolicy.policy import CodeKind, Ranking, Step, Tags, Work
from batchpolicy.requests import BoolArray, IntArray, Requests
from batchpolicy.terms import Fairness
from batchpolicy.tune import Tune
from batchpolicy.wrappers.wrapper import Wrapper


class Corridor(Wrapper):
    """Let no tenant get more than ``tokens`` ahead of the one served least, in any order inside.

    The order is the inner policy's. A tenant that leads by more than ``tokens`` weighted
    tokens starts nothing while the tenant served least has a request that could start.
    Counters are those of the ``fairness`` term of ``benefit``.

    Under any inner order the counters of two tenants that both have requests waiting
    differ by at most ``tokens`` + U. Where output is predicted, U is the largest charge of
    one request, ``(prompt_weight * prompt + output_weight * output) / weight``. Without
    predictions U is ``max(prompt_weight * prompt, output_weight * M) / weight``, M the
    tokens that the KV cache holds, if output costs no less than prompt. That holds while

    - both have a request that the inner policy would let start, without a break;
    - predictions are right: one that was too high is paid back at the end, and lowers
      the counter by then;
    - no bound overrides: an overdue request starts anyway, and urgent ones that displace
      others go by their class;
    - nobody is preempted into a queue that its tenant had left: a tenant is lifted to the
      least counter when a request arrives, not when one comes back.

    References
    ----------
    Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
    """

    tags: ClassVar[Tags] = Tags()
    neutral: ClassVar[Mapping[str, Any] | None] = {"tokens": math.inf}

    tokens: Annotated[
        float, Field(gt=0, allow_inf_nan=True), Tune(1000.0, 200_000.0, log=True)
    ] = 20_000.0
    """Most weighted tokens by which a tenant may lead and still start requests; inf for no
    bound."""
    fairness: Fairness = Field(default_factory=Fairness)
    """Weights of the tenants, which go before those of the inner policy, and prices."""

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        ranking = super().rank(waiting, step)
        if self.tokens == math.inf:
            return ranking
        return hold_to_corridor(ranking, waiting, self.fairness, self.tokens, step)

    @override
    def tenant_weights(self) -> Mapping[str, float]:
        return {**super().tenant_weights(), **self.fairness.weights}

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        super().on_arrived(rows, step)
        self.fairness.on_arrived(rows, step)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        super().on_admitted(rows, step)
        self.fairness.on_admitted(rows, step)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        super().on_computed(rows, work, step)
        self.fairness.on_computed(rows, work, step)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        super().on_preempted(rows, step)
        self.fairness.on_preempted(rows, step)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        super().on_finished(rows, step)
        self.fairness.on_finished(rows, step)

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        gone = self.fairness.forget(codes, kind)
        gone[gone] = self.forget_inside(codes[gone], kind)
        return gone
