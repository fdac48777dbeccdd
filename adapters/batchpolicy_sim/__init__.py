"""The light engine: a continuous-batching engine of our own under a virtual clock."""

from batchpolicy_sim.engine import LightEngine, LightSglang

__all__ = ["LightEngine", "LightSglang"]
