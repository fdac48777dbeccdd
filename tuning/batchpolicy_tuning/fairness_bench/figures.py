"""What a run did for its tenants, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchpolicy.engine import Run, StepRecord
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy.workload import Workload
from batchpolicy_tuning.fairness import tenant_fairness
from batchpolicy_tuning.fairness_bench.deliveries import Deliveries
from batchpolicy_tuning.fairness_bench.service import ServiceCourse, bound
from batchpolicy_tuning.metrics import percentile


@dataclass(frozen=True, slots=True)
class Figures:
    """One run; seconds, and service in weighted tokens."""

    pair_gap: float
    """See ``ServiceCourse.pair_gap``; up to the last arrival."""
    bound: float
    """What the virtual token counters promise for it."""
    cumulative_gap: float
    latency_s: float
    """Normalised latency: from arrival to the last token, per output token, mean of requests."""
    tenant_latency_s: float
    """Median over tenants of the mean of each."""
    jain: float
    """See ``tenant_fairness``."""
    tokens_per_s: float
    """Prompt tokens of what was admitted and output tokens, up to the last arrival."""
    ttft_p50_s: float
    ttft_p99_s: float
    worst_tenant_p99_s: float
    """Highest TTFT p99 of a tenant."""


def figures(run: Run, records: Sequence[StepRecord], kv_tokens: int) -> Figures:
    """The figures of a run in which all requests finished, of all of them.

    Its last requests are measured too: what a policy puts off has to be paid.
    """
    found = Deliveries.of(run, records)
    course = ServiceCourse.of(run, found)
    requests = run.workload.requests
    arrival_s = np.array([r.arrival_s for r in requests])
    ttft_s = run.first_token_s - arrival_s
    latency_s = (run.finished_s - arrival_s) / run.output_tokens
    names = sorted({r.tenant for r in requests})
    tenant = np.searchsorted(names, [r.tenant for r in requests])
    each = range(len(names))
    return Figures(
        pair_gap=course.pair_gap(),
        bound=bound(run, kv_tokens),
        cumulative_gap=course.cumulative_gap(),
        latency_s=float(latency_s.mean()),
        tenant_latency_s=_median(latency_s, tenant, len(names)),
        jain=tenant_fairness(run),
        tokens_per_s=_rate(run.workload, found),
        ttft_p50_s=percentile(ttft_s, 50),
        ttft_p99_s=percentile(ttft_s, 99),
        worst_tenant_p99_s=max(percentile(ttft_s[tenant == i], 99) for i in each),
    )


def _median(values: FloatArray, tenant: IntArray, tenants: int) -> float:
    sums = np.bincount(tenant, values, minlength=tenants)
    return float(np.median(sums / np.bincount(tenant, minlength=tenants)))


def _rate(workload: Workload, found: Deliveries) -> float:
    requests = workload.requests
    last_s = requests[-1].arrival_s
    started = found.admitted.first & (found.start_s[found.admitted.step] <= last_s)
    prompts = np.array([r.prompt_tokens for r in requests])[found.admitted.row[started]]
    outputs = int((found.end_s[found.step] <= last_s).sum())
    return (int(prompts.sum()) + outputs) / (last_s - requests[0].arrival_s)
