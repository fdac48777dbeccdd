"""SGLang's scheduler under small random workloads."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sglang.replay import SglangReplay
from batchpolicy_tuning.conformance.workloads import random_workload

COST = FormulaCost(base_s=0.01, token_s=0.0001)
AMPLE = EngineLimits(max_num_seqs=8, max_num_batched_tokens=128, kv_blocks=400, max_model_len=512)
TIGHT = EngineLimits(max_num_seqs=8, max_num_batched_tokens=64, kv_blocks=24, max_model_len=280)
EVERY_LIMITS = (AMPLE, replace(AMPLE, prefix_cache=True), TIGHT, replace(TIGHT, prefix_cache=True))


@dataclass
class Served:
    """A run and its steps."""

    run: Run
    steps: list[StepRecord] = field(default_factory=list[StepRecord])

    def order(self) -> list[str]:
        """Requests in the order in which they first started."""
        started = self.run.first_scheduled_s
        ids = [r.id for r in self.run.workload.requests]
        known = [i for i in range(len(ids)) if not math.isnan(started[i])]
        return [ids[i] for i in sorted(known, key=lambda i: (started[i], i))]

    def column(self, name: str) -> dict[str, float]:
        """One column of the run, by request."""
        ids = [r.id for r in self.run.workload.requests]
        return dict(zip(ids, getattr(self.run, name).tolist(), strict=True))


def serve(
    requests: Sequence[WorkloadRequest], limits: EngineLimits, config: PolicyConfig | None = None
) -> Served:
    """Serve requests on SGLang's own scheduler."""
    steps: list[StepRecord] = []
    run = SglangReplay().replay(
        Workload("small", tuple(requests)), config, limits, COST, observer=steps.append
    )
    return Served(run, steps)


def seeds(most: int) -> range:
    """Seeds of so many workloads, or of fewer if ``BATCHPOLICY_WORKLOADS`` says so."""
    return range(min(most, int(os.environ.get("BATCHPOLICY_WORKLOADS", most))))


def random_requests(seed: int, limits: EngineLimits) -> list[WorkloadRequest]:
    """Requests that SGLang can be asked for and has room for."""
    drawn = random_workload(random.Random(seed), limits)
    room = limits.kv_blocks * limits.kv_block_tokens - 2 * limits.kv_block_tokens
    return [
        replace(r, lora="", queue_ttl_s=math.inf)
        for r in drawn.requests
        if r.prompt_tokens + min(r.output_tokens, r.max_tokens) < room
    ]


def plain(
    name: str, arrival_s: float, prompt: int, output: int, **more: object
) -> WorkloadRequest:
    """A request of these sizes."""
    given: dict[str, object] = {"max_tokens": output, **more}
    return WorkloadRequest(
        id=name,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        **given,  # type: ignore[arg-type]
    )
