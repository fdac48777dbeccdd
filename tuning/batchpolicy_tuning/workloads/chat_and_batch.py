"""The embedded workload ``chat-and-batch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batchpolicy.requests import FloatArray
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.draws import (
    bulk_arrivals,
    generator,
    lengths,
    poisson_arrivals,
    senders,
)

NOMINAL_RATE = 10.0
"""Requests per second before the harness sets the load."""


@dataclass(frozen=True, slots=True)
class _Class:
    name: str
    share: float
    priority: int
    tenants: Mapping[str, float]
    prompt: Mapping[str, float]
    output: Mapping[str, float]
    max_tokens: int
    ttft_slo_s: float
    tpot_slo_s: float
    bulk: int = 0
    """Requests of one job that come together; 0 when each comes by itself."""


CLASSES = (
    _Class(
        name="chat",
        share=0.6,
        priority=0,
        tenants={"web": 0.5, "mobile": 0.3, "partner": 0.2},
        prompt={"median": 500, "sigma": 0.8, "low": 20, "high": 4000},
        output={"median": 150, "sigma": 0.7, "low": 8, "high": 800},
        max_tokens=1024,
        ttft_slo_s=1.0,
        tpot_slo_s=0.05,
    ),
    _Class(
        name="agent",
        share=0.2,
        priority=5,
        tenants={"ide": 0.7, "support": 0.3},
        prompt={"median": 1500, "sigma": 0.6, "low": 200, "high": 8000},
        output={"median": 80, "sigma": 0.8, "low": 8, "high": 500},
        max_tokens=512,
        ttft_slo_s=2.0,
        tpot_slo_s=0.1,
    ),
    _Class(
        name="batch",
        share=0.2,
        priority=10,
        tenants={"reports": 0.8, "research": 0.2},
        prompt={"median": 1200, "sigma": 0.5, "low": 200, "high": 6000},
        output={"median": 300, "sigma": 0.5, "low": 50, "high": 1500},
        max_tokens=2048,
        ttft_slo_s=15.0,
        tpot_slo_s=0.15,
        bulk=30,
    ),
)


@dataclass(frozen=True, slots=True)
class ChatAndBatch:
    """Three kinds of traffic on one engine, drawn anew for each replication.

    * ``chat``: 60% of the requests, Poisson, prompts of about 500 tokens (lognormal,
      sigma 0.8), answers of about 150 (0.7), first token within 1 s, then 50 ms a token;
    * ``agent``: 20%, Poisson, prompts of about 1,500 (0.6), answers of about 80 (0.8),
      2 s and 100 ms;
    * ``batch``: 20%, in jobs of 30 requests that come together, prompts of about 1,200
      (0.5), answers of about 300 (0.5), 15 s and 150 ms.

    Sizes are medians. Each class has two or three tenants with unequal shares. The
    ceilings that clients set, 1,024, 512 and 2,048 tokens, are well above the answers.
    """

    requests: int
    name: str = "chat-and-batch"
    notes: Sequence[str] = ()
    replications: None = None

    def replication(self, k: int, seed: int) -> Workload:
        """Workload number ``k``; the same for equal arguments."""
        rng = generator(self.name, k, seed)
        rows: list[WorkloadRequest] = []
        for kind in CLASSES:
            rows += self._requests_of(kind, rng)
        return Workload(self.name, tuple(sorted(rows, key=lambda r: (r.arrival_s, r.id))))

    def _requests_of(self, kind: _Class, rng: np.random.Generator) -> list[WorkloadRequest]:
        n = max(round(self.requests * kind.share), 1)
        prompt, output = (_lengths(rng, n, size) for size in (kind.prompt, kind.output))
        columns = zip(
            self._arrivals(kind, n, rng),
            prompt,
            output,
            senders(rng, kind.tenants, n),
            strict=True,
        )
        return [
            WorkloadRequest(
                id=f"{kind.name}-{i:04}",
                arrival_s=float(arrival_s),
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                max_tokens=kind.max_tokens,
                priority=kind.priority,
                tenant=tenant,
                request_class=kind.name,
                ttft_slo_s=kind.ttft_slo_s,
                tpot_slo_s=kind.tpot_slo_s,
            )
            for i, (arrival_s, prompt_tokens, output_tokens, tenant) in enumerate(columns)
        ]

    def _arrivals(self, kind: _Class, n: int, rng: np.random.Generator) -> FloatArray:
        span_s = self.requests / NOMINAL_RATE
        if kind.bulk:
            return bulk_arrivals(rng, n, span_s, size=kind.bulk, gap_s=0.01)
        return poisson_arrivals(rng, n, span_s)


def _lengths(rng: np.random.Generator, n: int, size: Mapping[str, float]) -> list[int]:
    drawn = lengths(
        rng,
        n,
        median=size["median"],
        sigma=size["sigma"],
        low=int(size["low"]),
        high=int(size["high"]),
    )
    return [int(tokens) for tokens in drawn]
