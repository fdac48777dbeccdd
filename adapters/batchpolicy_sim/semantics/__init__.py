"""How engines fill a step, by the name of the engine."""

from __future__ import annotations

from collections.abc import Callable

from batchpolicy.engine import EngineLimits
from batchpolicy_sim.batch import Batch
from batchpolicy_sim.semantics.step import Semantics, Step
from batchpolicy_sim.semantics.vllm import VllmSemantics

__all__ = ["SEMANTICS", "Semantics", "Step", "VllmSemantics"]

SEMANTICS: dict[str, Callable[[Batch, EngineLimits, bool], Semantics]] = {"vllm": VllmSemantics}
"""Makes the semantics of that name; the last argument: blocks come from the worst priority."""
