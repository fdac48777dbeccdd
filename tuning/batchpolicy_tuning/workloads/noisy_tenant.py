"""The embedded workload ``noisy-tenant``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchpolicy.requests import FloatArray
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.draws import (
    burst_arrivals,
    generator,
    lengths,
    poisson_arrivals,
    senders,
)

NOMINAL_RATE = 10.0
"""Requests per second before the harness sets the load."""
NEIGHBOURS = {f"tenant-{i:02}": 1.0 / (i + 2) for i in range(11)}
"""Shares of those who do not flood: the first sends six times as much as the last."""


@dataclass(frozen=True, slots=True)
class NoisyTenant:
    """Twelve tenants of equal rank, one of which floods; drawn anew for each replication.

    * ``flood``: 70% of the requests, from one tenant, all of it in a third of the time
      (10 s of each 30 s at the nominal rate);
    * ``neighbours``: 30%, from eleven tenants with unequal shares, Poisson.

    All are alike otherwise: prompts of about 500 tokens (lognormal median, sigma 0.8),
    outputs of about 120 (0.8), a ceiling of 1,024, priority 0, first token within
    2 s, then 100 ms a token. The two classes serve to show who gains and who pays.
    """

    requests: int
    name: str = "noisy-tenant"
    notes: Sequence[str] = ()
    replications: None = None

    def replication(self, k: int, seed: int) -> Workload:
        """Workload number ``k``; the same for equal arguments."""
        rng = generator(self.name, k, seed)
        span_s = self.requests / NOMINAL_RATE
        flooding = max(round(0.7 * self.requests), 1)
        others = max(self.requests - flooding, 1)
        flood_s = burst_arrivals(rng, flooding, span_s, on_frac=1 / 3, period_s=30.0)
        rows = _rows(rng, "flood", flood_s, ["noisy"] * flooding)
        rows += _rows(
            rng,
            "neighbours",
            poisson_arrivals(rng, others, span_s),
            senders(rng, NEIGHBOURS, others),
        )
        return Workload(self.name, tuple(sorted(rows, key=lambda r: (r.arrival_s, r.id))))


def _rows(
    rng: np.random.Generator, request_class: str, arrivals_s: FloatArray, tenants: list[str]
) -> list[WorkloadRequest]:
    n = len(arrivals_s)
    prompt = lengths(rng, n, median=500, sigma=0.8, low=20, high=6000)
    output = lengths(rng, n, median=120, sigma=0.8, low=4, high=1000)
    return [
        WorkloadRequest(
            id=f"{request_class}-{i:04}",
            arrival_s=float(arrivals_s[i]),
            prompt_tokens=int(prompt[i]),
            output_tokens=int(output[i]),
            max_tokens=1024,
            tenant=tenants[i],
            request_class=request_class,
            ttft_slo_s=2.0,
            tpot_slo_s=0.1,
        )
        for i in range(n)
    ]
