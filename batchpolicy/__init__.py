"""Engine-agnostic, pluggable scheduling policies for LLM serving engines."""

from batchpolicy.policy import Policy, Ranking, Step, Tags, Work
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests, Status
from batchpolicy.state import StateArray
from batchpolicy.tune import Tune

__all__ = [
    "BoolArray",
    "FloatArray",
    "IntArray",
    "Policy",
    "Ranking",
    "Requests",
    "StateArray",
    "Status",
    "Step",
    "Tags",
    "Tune",
    "Work",
]
