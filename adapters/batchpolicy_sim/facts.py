"""What a request says about itself, as facts for a policy."""

from __future__ import annotations

import math

from batchpolicy.config import RequestDefaults
from batchpolicy.runner import RequestFacts
from batchpolicy_sim.job import Job


def facts_of(job: Job, defaults: RequestDefaults) -> RequestFacts:
    """Facts of a request that has just come; values that make no sense count as absent.

    A workload names its tenants itself, so that ``tenant_from`` is not asked.
    """
    r = job.request
    return RequestFacts(
        prompt_tokens=job.prompt,
        max_tokens=job.most,
        priority=r.priority or defaults.default_priority,
        tenant=r.tenant,
        weight=_within(r.weight, 1e-6, 1e6, 1.0),
        session=r.session,
        lora=r.lora,
        ttft_slo_s=_within(r.ttft_slo_s, 1e-6, 1e9, math.inf),
        tpot_slo_s=_within(r.tpot_slo_s, 1e-6, 1e9, math.inf),
        deadline_s=_within(r.deadline_s, -1e9, 1e9, math.inf),
        queue_ttl_s=_within(r.queue_ttl_s, 1e-6, 1e9, math.inf),
        predicted_output_tokens=_within(r.predicted_output_tokens, 1.0, 2.0**31, math.nan),
        true_output_tokens=job.wanted,
        arrival_s=job.arrival_s,
        ready=job.ready,
    )


def _within(value: float, least: float, most: float, default: float) -> float:
    return value if least <= value <= most else default
