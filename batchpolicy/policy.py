"""The policy interface: what a scheduling policy is asked, and what it is told."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from batchpolicy.component import Component
from batchpolicy.errors import PolicyContractError
from batchpolicy.requests import BoolArray, FloatArray, IndexArray, IntArray, Requests
from batchpolicy.step_cost import StepCost

Role = Literal["both", "prefill", "decode"]
CodeKind = Literal["tenant", "session"]

MOST_TIERS = 1024
"""Strict classes that one policy may tell apart, and one around it once more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """What the engine can do in the step that is being planned.

    ``seats``, ``token_budget`` and ``free_kv_blocks`` are what is left for
    admission, running work and watermark taken off; the ceilings stand beside.
    """

    index: int
    now_s: float
    lag_steps: int
    role: Role
    mixed: bool
    max_partial: int
    decode_tokens: int
    max_running: int
    max_token_budget: int
    total_kv_blocks: int
    kv_block_tokens: int
    seats: int
    token_budget: int
    free_kv_blocks: int
    running: Requests
    waiting: Requests
    window: int
    step_s: float
    """How long the latest step took; NaN before the first."""
    busy_frac: float
    """Share of the last seconds in which a step ran, from 0 to 1; NaN before the first."""
    cost: StepCost | None


@dataclass(frozen=True, slots=True)
class Tags:
    """What a policy needs and admits; checks and adapters hold it to this."""

    requires: frozenset[str] = frozenset()
    """Capabilities without which it is refused at start, such as ``step_cost``."""
    may_starve: bool = False
    """Some request may wait for ever while later ones are served."""
    native: str | None = None
    """The engine's own order that it equals, such as ``fcfs``."""
    preempts: Literal["class", "benefit"] = "class"
    """Whom it displaces where the policy file does not say."""


class Ranking(NamedTuple):
    """Order of the waiting requests: ``tier`` first, then ``benefit``, then submission."""

    benefit: FloatArray
    tier: IntArray | None = None
    admissible: BoolArray | None = None
    refuse: BoolArray | None = None
    """Requests to end now, as refused; those that ever started go on."""
    wake_s: float = math.inf
    """Time at which this answer changes though nothing happens, such as when a gate opens."""

    def take(self, rows: IndexArray) -> Ranking:
        """The ranking of some of the rows."""
        return Ranking(
            self.benefit[rows],
            None if self.tier is None else self.tier[rows],
            None if self.admissible is None else self.admissible[rows],
            None if self.refuse is None else self.refuse[rows],
            self.wake_s,
        )

    def under(self, tier: IntArray) -> Ranking:
        """The same order inside each class of ``tier``, shape ``(n,)``, classes before it.

        Both tiers run from 0 to 1,023, so that one policy with tiers may stand in another.

        Raises
        ------
        PolicyContractError
            When one of them does not.
        """
        return self._replace(tier=nested_tiers(tier, self.tier))


def nested_tiers(outer: IntArray, inner: IntArray | None) -> IntArray:
    """One tier for two: ``outer`` first; see ``Ranking.under``."""
    for tier in (outer, inner):
        if tier is not None and len(tier) and not 0 <= tier.min() <= tier.max() < MOST_TIERS:
            raise PolicyContractError(
                f"tiers run from {tier.min()} to {tier.max()}, expected 0 to {MOST_TIERS - 1}: "
                "tiers nest once, so write those of three policies as those of two."
            )
    nested: IntArray = outer * MOST_TIERS
    return nested if inner is None else nested + inner


class Limits(NamedTuple):
    """Limits of the next steps; None for the engine's start value, which is the ceiling."""

    max_running: int | None = None
    token_budget: int | None = None
    """Of one step, decodes included."""
    prefill_chunk: int | None = None
    """Most prompt tokens of one request in one step."""


class Work(NamedTuple):
    """What was computed for each row since the last call; arrays of shape ``(n,)``."""

    prefill_tokens: IntArray
    """Recomputation included, cache hits not."""
    output_tokens: IntArray
    """Delivered."""
    steps: int
    elapsed_s: float


class Policy(Component, ABC):
    """Scores requests and keeps its own accounts.

    Parameters are fields: they come from the policy file, are validated before
    the engine starts, and do not change afterwards. State lives in private
    attributes (``StateArray`` indexed by slot, tenant or session), and only the
    ``on_...`` hooks change it.

    ``benefit``, ``tier`` and ``keep_benefit`` are *pointwise*: the value of a row
    depends on that row, on ``step`` and on the state, never on which other rows
    were passed. A policy whose choice depends on the set overrides ``rank``.
    """

    tags: ClassVar[Tags] = Tags()

    @abstractmethod
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        """Benefit of running each request now, shape ``(n,)``, finite; higher first."""

    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        """Strict classes over benefit, 0 first, shape ``(n,)``; None for one class."""
        return None

    def keep_benefit(self, running: Requests, step: Step) -> FloatArray | None:
        """Benefit of keeping each running request; the lowest goes first, ``inf`` never.

        It stands on the scale of ``benefit``, and is that plus what displacing would cost.
        None leaves the choice among equals in class and tier to the runner, which takes
        whoever loses least; where benefits are compared, None is ``benefit`` itself.
        """
        return None

    def admissible(self, waiting: Requests, step: Step) -> BoolArray | None:
        """Which requests may start in this step, shape ``(n,)``; None for all."""
        return None

    def rank(self, waiting: Requests, step: Step) -> Ranking:
        """The one call that orders the queue."""
        return Ranking(
            self.benefit(waiting, step), self.tier(waiting, step), self.admissible(waiting, step)
        )

    def limits(self, step: Step) -> Limits:
        """Limits from this step on, asked before ``rank``; ``step`` shows the ceilings."""
        return Limits()

    def overrides(self, method: str) -> bool:
        """Whether a call of that name does anything; where not, nobody need make it."""
        return getattr(type(self), method) is not getattr(Policy, method)

    def native_order(self) -> str | None:
        """The engine's own order that these parameters amount to, or None."""
        return self.tags.native

    def tenant_weights(self) -> Mapping[str, float]:
        """Shares by tenant name that the policy file sets; others keep the request's."""
        return {}

    def count_in(self, counters: Counter[str]) -> None:
        """Where to count what happens in the policy, told once at the start; shown as metrics."""

    def on_arrived(self, rows: Requests, step: Step) -> None:
        """New requests, once each."""

    def on_admitted(self, rows: Requests, step: Step) -> None:
        """They start, or start again after a preemption; none of their work is done yet."""

    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        """Results came back."""

    def on_preempted(self, rows: Requests, step: Step) -> None:
        """They lose their KV; the rows still show what is about to be lost."""

    def on_finished(self, rows: Requests, step: Step) -> None:
        """They ended, once each, from any state; see ``rows.status``."""

    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        """Drop what is kept of tenants or sessions, where nothing is lost by it.

        Asked when codes run out, about such as have no live requests. True, shape ``(n,)``,
        for each whose state is now that of a code never seen: it may stand for somebody
        else from now on. False where the state still matters, as a debt does. A policy
        that has no hooks has no state; one that has keeps everything unless it says here
        what can go.
        """
        return np.full(len(codes), not has_hooks(type(self), Policy))


HOOKS = ("on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished")


def has_hooks(cls: type, base: type) -> bool:
    """Whether ``cls`` overrides a hook of ``base``, and so may keep state."""
    return any(getattr(cls, hook) is not getattr(base, hook) for hook in HOOKS)
