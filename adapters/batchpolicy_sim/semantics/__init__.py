"""How engines fill a step, by the name of the engine."""

from __future__ import annotations

from batchpolicy_sim.semantics.sglang import SglangSemantics
from batchpolicy_sim.semantics.step import Semantics, Step
from batchpolicy_sim.semantics.vllm import VllmSemantics

__all__ = ["SEMANTICS", "Semantics", "SglangSemantics", "Step", "VllmSemantics"]

SEMANTICS: dict[str, type[SglangSemantics] | type[VllmSemantics]] = {
    "sglang": SglangSemantics,
    "vllm": VllmSemantics,
}
"""Makes the semantics of that name; the last argument: blocks come from the worst priority."""
