"""Orders by size, and what each is told of lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from batchpolicy.config import Bounds, PolicyConfig, PolicySpec, PredictorSpec
from batchpolicy.predictor import Arrivals
from batchpolicy_tuning.size_benches.setting import Draws

WEIGHT = 8.0
"""What an output token costs beside one of a prompt, on a few dozen seats."""
_PROMOTING = ("multilevel-feedback", "least-attained-service")
"""They bound waits themselves."""
_WEIGHTED = ("shortest-first", "highest-response-ratio")


@dataclass(frozen=True, slots=True)
class Arm:
    """An order, and what it is told of lengths."""

    policy: str
    tau: float | None = None
    """Kendall's tau of predictions and lengths; None where nobody predicts."""
    bounded: bool = True

    @property
    def label(self) -> str:
        """Its name in tables."""
        told = "" if self.tau is None else f", tau {self.tau:g}"
        unbounded = ", promote_s as it comes" if self.policy in _PROMOTING else ", no bound"
        return f"{self.policy}{told}{'' if self.bounded else unbounded}"

    def config(self, draws: Draws, max_wait_s: float) -> PolicyConfig:
        """Its policy file, with an end to waits where it has one."""
        params: dict[str, Any] = {"output_weight": WEIGHT} if self.policy in _WEIGHTED else {}
        bounds = Bounds()
        if self.bounded and self.policy in _PROMOTING:
            params["promote_s"] = max_wait_s
        elif self.bounded and self.policy != "fcfs":
            bounds = Bounds(max_wait_s=max_wait_s, turns="none")
        return PolicyConfig(
            policy=PolicySpec(name=self.policy, params=params),
            predictor=None if self.tau is None else noisy_oracle(draws, self.tau),
            bounds=bounds,
        )


def noisy_oracle(draws: Draws, tau: float) -> PredictorSpec:
    """The true lengths with so much noise, made for lengths like these."""
    median, log_sigma = draws.typical
    params = {"tau": tau, "typical_tokens": median, "typical_log_sigma": log_sigma}
    return PredictorSpec(name="noisy-oracle", params=params)


def tau_of(spec: PredictorSpec, draws: Draws) -> float:
    """Kendall's tau-b of the predicted medians and the lengths, mean over the draws measured."""
    found: list[float] = []
    for workload in draws.measured:
        requests = workload.requests
        truth = np.array([r.output_tokens for r in requests])
        told = spec.build().predict(
            Arrivals(
                request_id=[r.id for r in requests],
                prompt_tokens=np.array([r.prompt_tokens for r in requests]),
                max_tokens=np.array([r.max_tokens for r in requests]),
                tenant=[r.tenant for r in requests],
                truth=truth,
            )
        )
        found.append(float(kendalltau(told.quantile(0.5), truth).statistic))
    return float(np.mean(found))
