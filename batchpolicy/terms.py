"""Benefit terms: each maps requests to ``[0, 1]``, higher is better."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PrivateAttr
from typing_extensions import override

from batchpolicy.component import Component
from batchpolicy.counters import TokenCounters
from batchpolicy.policy import Step, Work
from batchpolicy.requests import FloatArray, Requests
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
        priority = requests.priority
        score = np.abs(priority) + self.scale
        np.divide(priority, score, out=score)
        score -= 1.0
        score *= -0.5
        return score


class Urgency(Term):
    """How close the nearest target is: 1 when due, halving every ``half_life_s`` before.

    Targets are those of the next token (TTFT, then TPOT), and the deadline of the whole
    answer less the time that the output predicted to come takes at the last step's pace.
    """

    weight: Annotated[NonNegativeFloat, Tune(0.01, 10.0, log=True)] = 2.0
    """What a request that is due is worth."""
    half_life_s: Annotated[PositiveFloat, Tune(0.05, 10.0, log=True)] = 0.5
    """Slack that halves the score, in seconds."""

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        due_s = np.minimum(requests.next_token_due_s, _last_start_s(requests, step))
        score = np.minimum(step.now_s - due_s, 0.0)
        score /= self.half_life_s
        return np.exp2(score, out=score)


def _last_start_s(requests: Requests, step: Step) -> FloatArray:
    """When the rest of each answer should begin to come, for its deadline."""
    deadline_s = requests.deadline_s
    if step.step_s != step.step_s or not np.isfinite(deadline_s).any():
        return deadline_s
    to_come = requests.predicted_output_tokens - requests.output_tokens
    # Without a prediction nobody knows; max_tokens is a ceiling that few answers reach.
    to_come = np.where(np.isnan(to_come), 0.0, np.maximum(to_come, 0.0))
    return deadline_s - to_come * step.step_s


class Fairness(Scorer):
    """Weighted virtual token counters: the tenant served least comes first.

    Its weight is the policy's lambda.

    A tenant is charged for its prompt when a request is admitted, and for each
    output token then or as it comes out, divided by its weight. A tenant that was idle is
    lifted to the least counter among those that wait, so that nobody saves up
    credit. Requests without a tenant share one counter. See ``TokenCounters``.
    """

    weights: dict[str, PositiveFloat] = Field(default_factory=dict[str, float])
    """Shares by tenant name; tenants not named keep the request's, 1 by default."""
    scale_tokens: Annotated[PositiveFloat, Tune(500.0, 200_000.0, log=True)] = 20_000.0
    """Lead over the tenant served least at which the score has fallen to 0, in tokens."""
    prompt_weight: PositiveFloat = 1.0
    """Price of a prompt token."""
    output_weight: PositiveFloat = 2.0
    """Price of an output token."""
    book: bool = True
    """Charge the output that is predicted at admission and correct it at the end; without a
    prediction, and with false, output is charged as it comes."""

    _counters: TokenCounters = PrivateAttr(default_factory=TokenCounters)

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        counters = self._counters
        floor = counters.floor()
        # Of each tenant, not of each request: there are far fewer of them.
        return counters.served.mapped(
            lambda served: 1.0 - np.clip((served - floor) / self.scale_tokens, 0.0, 1.0),
            requests.tenant,
        )

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._counters.arrived(rows)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        counters = self._counters
        counters.left(rows)
        counters.charge(rows, self.price_of_admission(rows))
        first = rows.take(rows.preemptions == 0)
        if self.book and len(first):
            counters.book(first, self._predicted(first))

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        tokens = self._counters.beyond_booked(rows, work.output_tokens)
        self._counters.charge(rows, self.output_weight * tokens / rows.weight)

    def served(self, requests: Requests) -> FloatArray:
        """Counter of each request's tenant, shape ``(n,)``, in weighted tokens."""
        return self._counters.served[requests.tenant]

    def price_of_admission(self, rows: Requests) -> FloatArray:
        """What each row's tenant is charged when it starts, shape ``(n,)``."""
        price = self.prompt_weight * rows.prompt_tokens
        if self.book:
            price = price + self.output_weight * self._predicted(rows)
        # Who was preempted has paid already.
        return np.where(rows.preemptions == 0, price / rows.weight, 0.0)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._counters.returned(rows)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self._counters.left(rows)
        unspent = self._counters.unspent(rows)
        if unspent is not None:
            self._counters.charge(rows, -self.output_weight * unspent / rows.weight)

    def _predicted(self, rows: Requests) -> FloatArray:
        """Output that will be charged at admission; none where nobody predicts."""
        predicted = np.minimum(rows.predicted_output_tokens, rows.max_tokens)
        return np.where(predicted > 0.0, predicted, 0.0)
