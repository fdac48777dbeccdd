"""Even shares between tenants."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat, PrivateAttr
from typing_extensions import override

from batchpolicy.counters import TokenCounters
from batchpolicy.policy import CodeKind, Step, Work
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.terms.term import Scorer
from batchpolicy.tune import Tune


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
    book_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of the predicted output that is charged at admission; the rest as it comes. All of it
    keeps counters closest together, and a part what tenants were served so far."""

    _counters: TokenCounters = PrivateAttr(default_factory=TokenCounters)

    @override
    def score(self, requests: Requests, step: Step) -> FloatArray:
        counters = self._counters
        floor = counters.floor()
        # Of each tenant, not of each request: there are far fewer of them.
        return counters.served.mapped(
            lambda served: 1.0 - _clip((served - floor) / self.scale_tokens), requests.tenant
        )

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._counters.arrived(rows)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        counters = self._counters
        counters.left(rows)
        predicted = self._predicted(rows)
        counters.charge(rows, self._price(rows, predicted))
        if predicted is None:
            return
        if not rows.at_default("preemptions"):
            first = rows.preemptions == 0
            rows, predicted = rows.take(first), predicted[first]
        counters.book(rows, predicted)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        tokens = self._counters.beyond_booked(rows, work.output_tokens)
        if tokens is not None:
            self._charge(rows, self.output_weight * tokens)

    def served(self, requests: Requests) -> FloatArray:
        """Counter of each request's tenant, shape ``(n,)``, in weighted tokens."""
        return self._counters.served[requests.tenant]

    def price_of_admission(self, rows: Requests) -> FloatArray:
        """What each row's tenant is charged when it starts, shape ``(n,)``."""
        return self._price(rows, self._predicted(rows))

    def _charge(self, rows: Requests, tokens: FloatArray) -> None:
        """Charge so many tokens, shape ``(n,)``, divided by the weights of the tenants."""
        self._counters.charge(rows, tokens if rows.at_default("weight") else tokens / rows.weight)

    def _price(self, rows: Requests, predicted: FloatArray | None) -> FloatArray:
        price = np.multiply(self.prompt_weight, rows.prompt_tokens, dtype=np.float64)
        if predicted is not None:
            price += self.output_weight * predicted
        if not rows.at_default("weight"):
            price /= rows.weight
        # Who was preempted has paid already.
        if not rows.at_default("preemptions"):
            price[rows.preemptions > 0] = 0.0
        return price

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._counters.returned(rows)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self._counters.left(rows)
        unspent = self._counters.unspent(rows)
        if unspent is not None:
            self._charge(rows, -self.output_weight * unspent)

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        return self._counters.forget(codes) if kind == "tenant" else np.full(len(codes), True)

    def _predicted(self, rows: Requests) -> FloatArray | None:
        """Output that is charged at admission, of whom nobody predicts none; None of nobody."""
        if not self.book or rows.at_default("predicted_output_tokens"):
            return None
        predicted = np.minimum(rows.predicted_output_tokens, rows.max_tokens)
        # NaN, of whom nobody predicts any, becomes 0.
        predicted = np.fmax(predicted, 0.0)
        return predicted if self.book_share == 1.0 else self.book_share * predicted


def _clip(values: FloatArray) -> FloatArray:
    """Between 0 and 1, in place: ``np.clip`` takes several times as long for a few tenants."""
    np.maximum(values, 0.0, out=values)
    return np.minimum(values, 1.0, out=values)
