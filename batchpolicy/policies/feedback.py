"""What orders by attained service have in common: levels that service leads down through."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PrivateAttr
from typing_extensions import override

from batchpolicy.policy import Policy, Step, Tags, Work
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.state import StateArray
from batchpolicy.tune import Tune


class Feedback(Policy):
    """Serve first the level that was served least; in a level by arrival.

    The first level lasts for ``quantum_tokens`` of service, each next one for
    ``quantum_ratio`` times as many, and the last for ever. Who waited for ``promote_s``
    stands in the first level, and begins again there once it starts: no later arrival
    passes it any more. Of a request that gave way no prompt is service any more, as most of it
    is computed a second time. For a running request its KV counts, prefix hits included, as they
    may be gone by then: it gives way to who stands above the level that it would be in without
    the service that it would lose.
    """

    tags: ClassVar[Tags] = Tags(preempts="benefit")

    quantum_tokens: Annotated[PositiveFloat, Tune(64.0, 65_536.0, log=True)] = 4096.0
    """Service in the first level, in prompt tokens."""
    quantum_ratio: Annotated[float, Field(ge=1.0, le=1000.0), Tune(1.2, 8.0, log=True)] = 2.0
    """Service in a level over that in the one before."""
    levels: Annotated[int, Field(ge=1, le=64)] = 8
    output_weight: Annotated[NonNegativeFloat, Tune(0.1, 100.0, log=True)] = 8.0
    """What an output token counts, in prompt tokens."""
    recompute_weight: Annotated[NonNegativeFloat, Tune(0.1, 10.0, log=True)] = 1.0
    """What a token counts that displacement would have computed again, in prompt tokens."""
    promote_s: Annotated[PositiveFloat, Tune(1.0, 600.0, log=True)] = 30.0
    """Wait without service after which a request is in the first level again."""

    _waits_from_s: StateArray = PrivateAttr(default_factory=lambda: StateArray(np.inf))
    """When each request began to wait; inf while it runs."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        level = self._level(requests)
        level[self._promoted(requests, step)] = 0
        return np.negative(level, dtype=np.float64)

    @override
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray:
        lost = self.recompute_weight * running.computed_tokens
        level = self._level_after(np.maximum(self._attained(running) - lost, 0.0))
        return np.negative(level, dtype=np.float64)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._waits_from_s[rows.slot] = rows.arrival_s

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        # Told late where nothing was to be decided: the columns know when they first started.
        first_s = rows.first_scheduled_s
        told_now = (rows.preemptions > 0) | (first_s != first_s)
        waited_s = np.where(told_now, step.now_s, first_s) - self._waits_from_s[rows.slot]
        self._restart(rows.take(waited_s >= self.promote_s))
        self._waits_from_s[rows.slot] = np.inf

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        new = np.where(rows.preemptions > 0, 0, work.prefill_tokens)
        output: FloatArray = self.output_weight * work.output_tokens.astype(np.float64)
        self._serve(rows, output + new)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._waits_from_s[rows.slot] = step.now_s

    @abstractmethod
    def _level(self, requests: Requests) -> IntArray:
        """Level of each row, from 0, shape ``(n,)``, as if nobody were promoted."""

    @abstractmethod
    def _attained(self, started: Requests) -> FloatArray:
        """Service that counts for each row, shape ``(n,)``, of requests that ever started."""

    @abstractmethod
    def _serve(self, rows: Requests, tokens: FloatArray) -> None:
        """They got so much service."""

    @abstractmethod
    def _restart(self, rows: Requests) -> None:
        """They begin again in the first level."""

    def _level_after(self, service: FloatArray) -> IntArray:
        return np.searchsorted(self._starts[1:], service, side="right")

    def _promoted(self, requests: Requests, step: Step) -> BoolArray:
        promoted: BoolArray = step.now_s - self._waits_from_s[requests.slot] >= self.promote_s
        return promoted

    @cached_property
    def _quanta(self) -> FloatArray:
        """Service in each level but the last, which has no end."""
        below = range(self.levels - 1)
        return np.array([self.quantum_tokens * self.quantum_ratio**k for k in below])

    @cached_property
    def _starts(self) -> FloatArray:
        """Service at which each level starts."""
        return np.concatenate([[0.0], np.cumsum(self._quanta)])
