"""Longest cached prefix first."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.policy import Policy, Step, Tags
from batchpolicy.requests import FloatArray, Requests


class LongestPrefix(Policy):
    """Serve first the request of whose prompt most is in the prefix cache; ties by arrival.

    Requests that share a prefix are so served together, before it is evicted. Hits are
    looked up for 32 waiting requests a step, new ones first, so that no queue is too long.
    Who shares nothing waits for as long as others do: ``bounds.max_wait_s`` ends that, and
    inside of ``corridor`` no tenant gains more by it than the corridor is wide.

    References
    ----------
    L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs",
    NeurIPS 2024; S. Cao et al., "Locality-aware Fair Scheduling in LLM Serving", 2025, for
    the order within bounds of fairness.
    """

    tags: ClassVar[Tags] = Tags(requires=frozenset({"prefix"}), may_starve=True)

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.cached_tokens.astype(np.float64)
