"""What a term of the benefit is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

import numpy as np
from pydantic import NonNegativeFloat

from batchpolicy.component import Component
from batchpolicy.policy import CodeKind, Step, Work, has_hooks
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.tune import Tune


class Scorer(Component, ABC):
    """One view of how much a request should run.

    ``score`` is pointwise, like ``Policy.benefit``, and the hooks are those of
    ``Policy``; the policy that holds the scorer passes them on.
    """

    @abstractmethod
    def score(self, requests: Requests, step: Step) -> FloatArray:
        """Score of each request, shape ``(n,)``, in ``[0, 1]``; the caller may overwrite it."""

    def refuse(self, waiting: Requests, step: Step) -> BoolArray | None:
        """Waiting requests to end now, shape ``(n,)``; None for nobody."""
        return None

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

    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        """See ``Policy.forget``."""
        return np.full(len(codes), not has_hooks(type(self), Scorer))


class Term(Scorer):
    """A scorer with a weight of its own: what a policy file can add to ``benefit``."""

    weight: Annotated[NonNegativeFloat, Tune(0.01, 10.0, log=True)] = 1.0
    """What a score of 1 is worth."""
