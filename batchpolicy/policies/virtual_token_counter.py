"""Virtual token counters alone: the tenant served least comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from batchpolicy.picking import turns
from batchpolicy.policies.shortest_first import ShortestFirst
from batchpolicy.policy import CodeKind, Policy, Ranking, Step, Tags, Work
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.terms import Fairness

_SHORTEST = ShortestFirst()


class VirtualTokenCounter(Policy):
    """Serve the tenant whose weighted counter is least; within a tenant by arrival or by size.

    The counter is that of the ``fairness`` term of ``benefit``: prompts are charged at
    admission, output as it comes, and a tenant that was idle is lifted. A tenant is
    charged for each of its requests that would start in the same step, so that many
    free seats do not all go to one.

    While two tenants both wait, what they were served moves apart by at most
    ``2 * max(w_p * L_in, w_q * M)``, L_in the longest prompt and M the tokens that the KV
    cache holds, whichever requests of a tenant come first. Nobody waits for ever under
    ``within_tenant: arrival``; under ``shortest`` the long requests of a tenant can, behind
    short ones of its own.

    References
    ----------
    Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True)

    within_tenant: Literal["arrival", "shortest"] = "arrival"
    """Order of the requests of one tenant: by arrival, or that of ``shortest-first``."""
    fairness: Fairness = Field(default_factory=lambda: Fairness(book=False))
    """Weights of the tenants, and prices of prompt and output tokens."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -self.fairness.served(requests)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return turns(
            Ranking(self._within(waiting, step)),
            waiting.tenant,
            self.fairness.served(waiting),
            self.fairness.price_of_admission(waiting),
            step,
        )

    def _within(self, waiting: Requests, step: Step) -> FloatArray:
        """Benefit of each row among those of its tenant."""
        if self.within_tenant == "shortest":
            return _SHORTEST.benefit(waiting, step)
        return np.zeros(len(waiting))

    @override
    def tenant_weights(self) -> Mapping[str, float]:
        return self.fairness.weights

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self.fairness.on_arrived(rows, step)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        self.fairness.on_admitted(rows, step)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self.fairness.on_computed(rows, work, step)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self.fairness.on_preempted(rows, step)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self.fairness.on_finished(rows, step)

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        return self.fairness.forget(codes, kind)
