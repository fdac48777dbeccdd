"""Predictions from earlier answers alone: of everybody, or of the tenant."""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
from pydantic import Field, PositiveInt, PrivateAttr
from typing_extensions import override

from batchpolicy.predictor import LEVELS, Arrivals, LengthDist, Predictor, within
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_predictors.samples import Window, guessed

MIDDLE = int(np.flatnonzero(LEVELS == 0.5)[0])

WindowSize = Annotated[int, Field(ge=8, le=100_000)]


class HistoryConditional(Predictor):
    """Answers are as long as the latest ones, given how long they are already.

    One distribution for all; what tells requests apart is their age (``LengthDist.given``).
    Answers that ended at their ceiling count as longer than that.

    References
    ----------
    R. Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025.
    """

    window: WindowSize = 1000
    """Answers that are remembered, the latest ones."""
    first_guess_tokens: PositiveInt = 256
    """Typical length before answers were seen."""

    _all: Window = PrivateAttr()

    @override
    def model_post_init(self, context: object) -> None:
        self._all = Window(self.window, guessed(self.first_guess_tokens))

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        return within(np.tile(self._all.quantiles, (len(batch), 1)), batch.max_tokens)

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 5e-6 * (rows > 0) + 1e-7 * rows + 1e-5 * answers

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        everybody = self._all
        for tokens, cut in _ended(batch, output_tokens):
            everybody.add(tokens, cut)
        if len(batch):
            everybody.settle()


class TenantHistory(Predictor):
    """Answers are as long as the latest ones of their tenant.

    Before a tenant has 32 answers, what everybody's answers say counts for the rest. Of
    more than ``most_tenants`` the one not heard of for longest is forgotten.
    """

    window: WindowSize = 256
    """Answers of a tenant that are remembered, the latest ones; of all together as many again."""
    most_tenants: PositiveInt = 1024
    """Tenants that are remembered."""
    first_guess_tokens: PositiveInt = 256
    """Typical length before answers were seen."""

    _all: Window = PrivateAttr()
    _tenants: dict[str, Window] = PrivateAttr(default_factory=dict[str, Window])
    """The one heard of last comes last."""

    @override
    def model_post_init(self, context: object) -> None:
        self._all = Window(self.window, guessed(self.first_guess_tokens))

    @classmethod
    def after(cls, quantiles: FloatArray) -> Self:
        """One that expects answers of these quantiles, shape ``(9,)``, until it hears of some."""
        made = cls()
        made._all = Window(made.window, quantiles)
        return made

    @property
    def typical_tokens(self) -> float:
        """Median of everybody's latest answers, or of what is expected before there are some."""
        return float(self._all.quantiles[MIDDLE])

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        return within(self.quantiles_of(batch.tenant), batch.max_tokens)

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 6e-6 * (rows > 0) + 2e-7 * rows + 1.6e-5 * answers

    def quantiles_of(self, tenants: list[str]) -> FloatArray:
        """Quantiles for requests of these tenants, shape ``(n, 9)``, whatever their ceilings."""
        known, everybody = self._tenants, self._all  # private attributes are slow to reach
        found = [known.get(tenant, everybody).quantiles for tenant in tenants]
        return np.concatenate(found).reshape(-1, len(LEVELS)) if found else np.empty((0, 9))

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        if not len(batch):
            return
        known, everybody, ended = self._tenants, self._all, _ended(batch, output_tokens)
        for tokens, cut in ended:
            everybody.add(tokens, cut)
        everybody.settle()
        touched: dict[str, Window] = {}
        for tenant, (tokens, cut) in zip(batch.tenant, ended, strict=True):
            if not tenant:
                continue  # of nobody in particular
            window = known.pop(tenant, None) or Window(self.window, everybody.quantiles)
            known[tenant] = touched[tenant] = window
            window.add(tokens, cut)
        for window in touched.values():
            window.settle(everybody.quantiles)
        while len(known) > self.most_tenants:
            del known[next(iter(known))]


def _ended(batch: Arrivals, output_tokens: IntArray) -> list[tuple[float, bool]]:
    """Length of each answer, and whether its ceiling cut it."""
    tokens = np.maximum(output_tokens, 1)
    cut = output_tokens >= batch.max_tokens
    return list(zip(tokens.astype(np.float64).tolist(), cut.tolist(), strict=True))
