"""The embedded workload ``long-prompts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchpolicy.requests import FloatArray, IntArray
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.draws import (
    generator,
    lengths,
    poisson_arrivals,
    senders,
)

NOMINAL_RATE = 5.0
"""Requests per second before the harness sets the load."""
LONG_SHARE = 0.02
CHAT_TENANTS = {"web": 0.5, "mobile": 0.3, "partner": 0.2}


@dataclass(frozen=True, slots=True)
class LongPrompts:
    """Chat beside a few very long prompts; drawn anew for each replication.

    * ``chat``: 98% of the requests, three tenants, prompts of about 500 tokens
      (lognormal median, sigma 0.8), answers of about 150 (0.7), a ceiling of 1,024,
      first token within 1 s, then 50 ms a token;
    * ``documents``: 2%, one tenant, prompts of 20,000 to 100,000 tokens (median
      45,000, sigma 0.5), answers of about 300 (0.5), a ceiling of 2,048, first token
      within 60 s, then 100 ms a token.

    All are Poisson and of priority 0, so that what a long prefill does to short
    requests is the policy's alone. Most of the prompt tokens are the documents'; with
    their ceilings they stay within a context of 131,072.
    """

    requests: int
    name: str = "long-prompts"
    notes: Sequence[str] = ()
    replications: None = None

    def replication(self, k: int, seed: int) -> Workload:
        """Workload number ``k``; the same for equal arguments."""
        rng = generator(self.name, k, seed)
        span_s = self.requests / NOMINAL_RATE
        long = max(round(LONG_SHARE * self.requests), 1)
        chat = max(self.requests - long, 1)
        rows = _rows(
            "chat",
            poisson_arrivals(rng, chat, span_s),
            lengths(rng, chat, median=500, sigma=0.8, low=20, high=4000),
            lengths(rng, chat, median=150, sigma=0.7, low=8, high=800),
            senders(rng, CHAT_TENANTS, chat),
            max_tokens=1024,
            ttft_slo_s=1.0,
            tpot_slo_s=0.05,
        )
        rows += _rows(
            "documents",
            poisson_arrivals(rng, long, span_s),
            lengths(rng, long, median=45_000, sigma=0.5, low=20_000, high=100_000),
            lengths(rng, long, median=300, sigma=0.5, low=50, high=1500),
            ["library"] * long,
            max_tokens=2048,
            ttft_slo_s=60.0,
            tpot_slo_s=0.1,
        )
        return Workload(self.name, tuple(sorted(rows, key=lambda r: (r.arrival_s, r.id))))


def _rows(
    request_class: str,
    arrivals_s: FloatArray,
    prompt: IntArray,
    output: IntArray,
    tenants: list[str],
    *,
    max_tokens: int,
    ttft_slo_s: float,
    tpot_slo_s: float,
) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(
            id=f"{request_class}-{i:04}",
            arrival_s=float(arrivals_s[i]),
            prompt_tokens=int(prompt[i]),
            output_tokens=int(output[i]),
            max_tokens=max_tokens,
            tenant=tenants[i],
            request_class=request_class,
            ttft_slo_s=ttft_slo_s,
            tpot_slo_s=tpot_slo_s,
        )
        for i in range(len(tenants))
    ]
