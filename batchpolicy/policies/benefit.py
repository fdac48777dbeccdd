"""The default policy: priority, urgency and fairness in one number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, PlainSerializer, PositiveFloat
from typing_extensions import override

from batchpolicy.corridor import hold_to_corridor
from batchpolicy.picking import first_rows, knapsack
from batchpolicy.policy import CodeKind, Policy, Ranking, Step, Tags, Work
from batchpolicy.prices import Prices
from batchpolicy.registry import build_term, dump_term
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.terms import Ageing, Fairness, PriorityTerm, Scorer, Shortness, Term, Urgency
from batchpolicy.tune import Tune


class Benefit(Policy):
    """Serve first whoever gains most.

    The benefit of a request is ``w_p * priority + w_u * urgency + lambda * fairness +
    w_s * shortness + w_a * ageing``, each term in [0, 1]. Lambda is the weight of
    fairness: at 0 only the others count, and the larger it is, the nearer the order comes
    to that of the virtual token counters. Shortness and ageing decide between requests
    that are equal otherwise, and together weigh less than priority 0 against 1. Further
    terms, installed or from a file, add to the sum.

    Ageing outweighs shortness: of two requests of a tenant, equal otherwise, the later
    passes only if it came soon after. A worse class, and a target that was missed, can
    wait for as long as others come, unless ``bounds`` end that.

    With ``corridor_tokens`` fairness has a hard form too. Where all requests are of one
    priority, the counters of two tenants that both have some waiting differ by at most
    that and U, whatever the terms say. U is the largest charge of one request at admission
    where all output is predicted, and right; else add what the running requests of a
    tenant may put out beyond their predictions. Nobody is held back for requests of a
    worse priority, and ``bounds`` go before it: an overdue request starts anyway.

    With ``prices`` the order is by benefit for what a request takes of step time, KV cache
    and seats.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True)

    lambda_: Annotated[NonNegativeFloat, Field(alias="lambda"), Tune(0.01, 10.0, log=True)] = 0.5
    """Weight of fairness between tenants."""
    priority: PriorityTerm = PriorityTerm()
    urgency: Urgency = Urgency()
    fairness: Fairness = Field(default_factory=Fairness)
    shortness: Shortness = Shortness()
    ageing: Ageing = Ageing()
    terms: tuple[
        Annotated[Term, BeforeValidator(build_term), PlainSerializer(dump_term)], ...
    ] = ()
    """Further terms: a list of ``{name: ..., weight: ...}``."""
    corridor_tokens: Annotated[PositiveFloat, Tune(1000.0, 200_000.0, log=True)] | None = 40_000.0
    """Most weighted tokens by which a tenant may lead the one served least and still start
    requests while that one waits; none for fairness by lambda alone."""
    prices: Prices | None = None
    """Order by benefit for what a request takes, at shadow prices; none for benefit alone."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        # In place where it can be: of a long queue, new arrays cost more than the arithmetic.
        total: FloatArray | None = None
        weighted: FloatArray | None = None
        for weight, term in self._scorers:
            if weight:
                weighted = np.multiply(weight, term.score(requests, step), out=weighted)
                if total is None:
                    total, weighted = weighted, None
                else:
                    total += weighted
        if total is None:
            return np.zeros(len(requests))
        return total if self.prices is None else total / self.prices.cost(requests, step)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        ranking = super().rank(waiting, step)
        for term in self._refusing:
            refuse = term.refuse(waiting, step)
            if refuse is not None:
                refuse = refuse if ranking.refuse is None else refuse | ranking.refuse
                ranking = ranking._replace(refuse=refuse, admissible=~refuse)
        if self.corridor_tokens is not None:
            ranking = hold_to_corridor(
                ranking, waiting, self.fairness, self.corridor_tokens, step, in_class=True
            )
        if self.prices is not None and len(waiting):
            ranking = _best_single(ranking, waiting, step, self.prices)
        return ranking

    @override
    def tenant_weights(self) -> Mapping[str, float]:
        return self.fairness.weights

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        for term in self._hearing["on_arrived"]:
            term.on_arrived(rows, step)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        for term in self._hearing["on_admitted"]:
            term.on_admitted(rows, step)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        for term in self._hearing["on_computed"]:
            term.on_computed(rows, work, step)
        if self.prices is not None:
            self.prices.on_computed(rows, work, step)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        for term in self._hearing["on_preempted"]:
            term.on_preempted(rows, step)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        for term in self._hearing["on_finished"]:
            term.on_finished(rows, step)
        if self.prices is not None:
            self.prices.on_finished(rows)

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        gone = np.full(len(codes), True)
        for _, term in self._scorers:
            # Who is dropped by one and kept by the next has lost nothing.
            gone[gone] = term.forget(codes[gone], kind)
        return gone

    @cached_property
    def _scorers(self) -> tuple[tuple[float, Scorer], ...]:
        return (
            (self.priority.weight, self.priority),
            (self.urgency.weight, self.urgency),
            (self.lambda_, self.fairness),
            (self.shortness.weight, self.shortness),
            (self.ageing.weight, self.ageing),
            *((term.weight, term) for term in self.terms),
        )

    @cached_property
    def _refusing(self) -> tuple[Scorer, ...]:
        """Terms that may refuse requests."""
        return tuple(t for _, t in self._scorers if type(t).refuse is not Scorer.refuse)

    @cached_property
    def _hearing(self) -> Mapping[str, tuple[Scorer, ...]]:
        """Of each hook, the terms that do something when it is called."""
        return {
            hook: tuple(
                term
                for _, term in self._scorers
                if getattr(type(term), hook) is not getattr(Scorer, hook)
            )
            for hook in ("on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished")
        }


def _best_single(ranking: Ranking, waiting: Requests, step: Step, prices: Prices) -> Ranking:
    """First the one row that gains more than all that would start in order, if there is one.

    Rows that do not fit are passed by the runner, for as long as ``bounds`` allow.
    """
    rows = first_rows(ranking, step, step.window)
    first = waiting.take(rows)
    gain = ranking.benefit[rows] * prices.cost(first, step)
    demand = np.ones((len(rows), 3))  # a seat, tokens, blocks
    demand[:, 1] = np.minimum(first.prefill_tokens, step.max_token_budget)
    demand[:, 2] = first.need_kv_blocks
    left = np.array([step.seats, step.token_budget, step.free_kv_blocks], dtype=np.float64)
    taken = knapsack(gain, demand, left)
    if int(taken.sum()) != 1 or taken[0]:
        return ranking
    tier = np.ones(len(waiting), dtype=np.int64)
    tier[rows[taken]] = 0
    return ranking._replace(tier=tier)
