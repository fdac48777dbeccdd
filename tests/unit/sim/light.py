"""Small workloads on the light engine, with all its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.step_cost import FormulaCost, StepCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine

LIMITS = EngineLimits(
    max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=100, kv_block_tokens=8, max_model_len=4096
)
SECOND = FormulaCost(base_s=1.0)
"""A step takes a second, whatever is in it."""


class Served:
    """A run on the light engine, under ``LIMITS`` but for what is named."""

    def __init__(
        self,
        *requests: WorkloadRequest,
        config: PolicyConfig | None = None,
        cost: StepCost = SECOND,
        **limits: Any,
    ) -> None:
        self.limits = replace(LIMITS, **limits)
        self.workload = Workload("w", requests)
        self.steps: list[StepRecord] = []
        self.run: Run = LightEngine().replay(
            self.workload, config, self.limits, cost, observer=self.steps.append
        )

    @property
    def plans(self) -> list[dict[str, int]]:
        """Tokens of each request, by step."""
        return [dict(step.tokens) for step in self.steps]

    def of(self, column: str) -> dict[str, Any]:
        """A column of the run by id."""
        ids = [r.id for r in self.workload.requests]
        return dict(zip(ids, getattr(self.run, column).tolist(), strict=True))


def request(id: str, prompt: int, output: int, at: float = 0.0, **facts: Any) -> WorkloadRequest:
    """A request that ends by itself unless ``max_tokens`` says otherwise."""
    given = {"max_tokens": output, **facts}
    return WorkloadRequest(
        id=id, arrival_s=at, prompt_tokens=prompt, output_tokens=output, **given
    )
