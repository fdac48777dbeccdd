"""The default policy: priority, urgency and fairness in one number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, PlainSerializer, PositiveFloat
from typing_extensions import override

from batchpolicy.corridor import hold_to_corridor
from batchpolicy.policy import Policy, Ranking, Step, Tags, Work
from batchpolicy.registry import build_term, dump_term
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.terms import Fairness, PriorityTerm, Scorer, Term, Urgency
from batchpolicy.tune import Tune

_NamedTerm = Annotated[Term, BeforeValidator(build_term), PlainSerializer(dump_term)]


class Benefit(Policy):
    """Serve first whoever gains most: ``w_p * priority + w_u * urgency + lambda * fairness``.

    Each term lies in [0, 1]. Lambda is the weight of fairness: at 0 only priority
    and urgency count, and the larger it is, the nearer the order comes to that of
    the virtual token counters. Further terms, installed or from a file, add to the
    sum. Without an ageing term a request can wait for as long as better ones come.

    With ``corridor_tokens`` fairness has a hard form too. The counters of two tenants
    that both have requests waiting differ by at most that and U, whatever the terms
    say. U is the largest charge of one request at admission where all output is
    predicted, and right; else add what the running requests of a tenant may put out
    beyond their predictions. ``bounds`` go before it: an overdue request starts anyway.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True)

    lambda_: Annotated[NonNegativeFloat, Field(alias="lambda"), Tune(0.01, 10.0, log=True)] = 0.5
    """Weight of fairness between tenants."""
    priority: PriorityTerm = PriorityTerm()
    urgency: Urgency = Urgency()
    fairness: Fairness = Field(default_factory=Fairness)
    terms: tuple[
        Annotated[Term, BeforeValidator(build_term), PlainSerializer(dump_term)], ...
    ] = ()
    """Further terms: a list of ``{name: ..., weight: ...}``."""
    corridor_tokens: Annotated[PositiveFloat, Tune(1000.0, 200_000.0, log=True)] | None = None
    """Most weighted tokens by which a tenant may lead the one served least and still start
    requests while that one waits; none for fairness by lambda alone."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        # In place where it can be: of a long queue, new arrays cost more than the arithmetic.
        total, weighted = np.zeros(len(requests)), np.empty(len(requests))
        for weight, term in self._scorers:
            if weight:
                total += np.multiply(weight, term.score(requests, step), out=weighted)
        return total

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        ranking = super().rank(waiting, step)
        if self.corridor_tokens is None:
            return ranking
        return hold_to_corridor(ranking, waiting, self.fairness, self.corridor_tokens, step)

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

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        for term in self._hearing["on_preempted"]:
            term.on_preempted(rows, step)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        for term in self._hearing["on_finished"]:
            term.on_finished(rows, step)

    @cached_property
    def _scorers(self) -> tuple[tuple[float, Scorer], ...]:
        return (
            (self.priority.weight, self.priority),
            (self.urgency.weight, self.urgency),
            (self.lambda_, self.fairness),
            *((term.weight, term) for term in self.terms),
        )

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
