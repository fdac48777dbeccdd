"""Benefit terms: each maps requests to ``[0, 1]``, higher is better."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PrivateAttr
from typing_extensions import override

from batchpolicy.component import Component
from batchpolicy.policy import Step, Work
from batchpolicy.requests import FloatArray, IntArray, Requests
from batchpolicy.state import StateArray
from batchpolicy.tune import Tune


class Scorer(Component, ABC):
    """One view of how much a request should run.

    ``score`` is pointwise, like ``Policy.benefit``, and the hooks are those of
    ``Policy``; the policy that holds the scorer passes them on.
    """

    @abstractmethod
    def score(self, requests: Requests, step: Step) -> FloatArray:
        """Score of each request, shape ``(n,)``, in ``[0, 1]``."""

    def on_arrived(self, rows: Requests, step: Step) -> None:
        """See ``Policy.on_arrived``."""

    def on_admitted(self, rows: Requests, step: Step) -> None:
        """See ``Policy.on_admitted``."""

    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        """See ``Policy.on_computed``."""

    def on_preempted(self, rows: Requests, step: Step) -> None:
        """See ``Policy.on_preempted``."""

    def on_finished(self, rows: Requests, step: Step) -> None:
        """See ``Policy.on_finished``."""


class Term(Scorer):
    """A scorer with a weight of its own: what a policy file can add to ``benefit``."""

    weight: Annotated[NonNegativeFloat, Tune(0.01, 10.0, log=True)] = 1.0
    """What a score of 1 is worth."""


class PriorityTerm(Term):
    """The priority that the request asks for; strictly falling in its number.

    Distinct scores for all integers within 10 million of 0; beyond that,
    neighbours may score the same.
    """

    scale: PositiveFloat = 10.0
    """Distance from 0 at which half of the way to the end of the scale is gone."""

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        priority = requests.priority.astype(np.float64)
        return 0.5 * (1.0 - priority / (self.scale + np.abs(priority)))


class Urgency(Term):
    """How close the next token's target is: 1 when due, halving every ``half_life_s`` before."""

    weight: Annotated[NonNegativeFloat, Tune(0.01, 10.0, log=True)] = 2.0
    """What a request that is due is worth."""
    half_life_s: Annotated[PositiveFloat, Tune(0.05, 10.0, log=True)] = 0.5
    """Slack that halves the score, in seconds."""

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        slack_s = np.maximum(requests.next_token_due_s - step.now_s, 0.0)
        return np.exp2(-slack_s / self.half_life_s)


class Fairness(Scorer):
    """Weighted virtual token counters: the tenant served least comes first.

    Its weight is the policy's lambda.

    A tenant is charged for its prompt when a request is admitted and for each
    output token as it comes out, divided by its weight. A tenant that was idle is
    lifted to the least counter among those that wait, so that nobody saves up
    credit. Requests without a tenant share one counter.

    References
    ----------
    Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
    """

    weights: dict[str, PositiveFloat] = Field(default_factory=dict[str, float])
    """Shares by tenant name; tenants not named keep the request's, 1 by default."""
    scale_tokens: Annotated[PositiveFloat, Tune(500.0, 200_000.0, log=True)] = 20_000.0
    """Lead over the tenant served least at which the score has fallen to 0, in tokens."""
    prompt_weight: PositiveFloat = 1.0
    """Price of a prompt token."""
    output_weight: PositiveFloat = 2.0
    """Price of an output token."""

    _served: StateArray = PrivateAttr(default_factory=StateArray)
    """Counter of each tenant, in weighted tokens."""
    _queued: StateArray = PrivateAttr(default_factory=StateArray)
    """Waiting requests of each tenant."""
    _waits: StateArray = PrivateAttr(default_factory=StateArray)
    """1 for each slot that ``_queued`` counts."""
    _left_last: int = PrivateAttr(default=-1)
    """Tenant of the request that left the queue last."""

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        lead = self._served[requests.tenant] - self._floor()
        return 1.0 - np.clip(lead / self.scale_tokens, 0.0, 1.0)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        if not len(rows):
            return
        idle = self._idle_tenants(rows)
        if len(idle):
            floor = self._floor()
            if not len(self._queued.positive()):
                # The first to come is lifted to whoever left last, the others to the first.
                floor = max(floor, float(self._served[idle[:1]][0]))
            self._served[idle] = np.maximum(self._served[idle], floor)
        self._enter(rows)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        self._leave(rows)
        # Who was preempted has paid for its prompt already.
        first = rows.take(rows.preemptions == 0)
        self._served.add(first.tenant, self.prompt_weight * first.prompt_tokens / first.weight)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._served.add(rows.tenant, self.output_weight * work.output_tokens / rows.weight)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._enter(rows)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self._leave(rows.take(self._waits[rows.slot] == 1.0))

    def _enter(self, rows: Requests) -> None:
        self._waits[rows.slot] = 1.0
        self._queued.add(rows.tenant, 1.0)

    def _leave(self, rows: Requests) -> None:
        if len(rows):
            self._waits[rows.slot] = 0.0
            self._queued.add(rows.tenant, -1.0)
            self._left_last = int(rows.tenant[-1])

    def _idle_tenants(self, rows: Requests) -> IntArray:
        """Tenants of the rows that have nothing waiting, in order of submission."""
        tenants = rows.tenant
        if len(tenants) > 1:
            tenants, first = np.unique(tenants, return_index=True)
            tenants = tenants[np.argsort(rows.seq[first], kind="stable")]
        idle: IntArray = tenants[self._queued[tenants] == 0.0]
        return idle

    def _floor(self) -> float:
        """Least counter among the tenants that wait; with none, that of the last to leave."""
        waiting = self._queued.positive()
        codes = waiting if len(waiting) else np.array([self._left_last])
        return float(self._served[codes].min())
