"""The policies that are compared, each with what it is told about lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.workload import Workload
from batchpolicy_tuning.fairness_bench.workloads import predicted

NOISE = 0.6
"""Standard deviation of the logarithm of predictions over true outputs: on the chat lengths of
these suites, whose own is 0.8 to 0.9, the ranks agree as with a Kendall tau of 0.6."""
_SHORTEST: Mapping[str, Any] = {
    "name": "virtual-token-counter",
    "params": {"within_tenant": "shortest", "fairness": {"book": True, "book_share": 0.3}},
}


@dataclass(frozen=True, slots=True)
class Row:
    """A policy in the tables."""

    label: str
    config: PolicyConfig
    noise: float | None = None
    """Log-sigma of the predictions: 0 for the truth, None where nobody predicts."""

    def told(self, workload: Workload, k: int, seed: int) -> Workload:
        """The workload with what this row is told about it."""
        return workload if self.noise is None else predicted(workload, k, seed, self.noise)


def _policy(name: str, **params: Any) -> PolicyConfig:
    return PolicyConfig(policy=PolicySpec(name=name, params=params))


FCFS = Row("fcfs", _policy("fcfs"))
VTC = Row("VTC", _policy("virtual-token-counter"))
VTC_ORACLE = Row(
    "VTC, true lengths booked",
    _policy("virtual-token-counter", fairness={"book": True}),
    noise=0.0,
)
LCF = Row(
    "VTC without lift",
    _policy("batchpolicy_tuning.fairness_bench.least_counter:LeastCounterFirst"),
)
BENEFIT = Row("benefit", _policy("benefit"))
OURS_BLIND = Row("ours, nobody predicts", PolicyConfig.model_validate({"policy": _SHORTEST}))
OURS = Row(
    "ours, noisy predictions",
    PolicyConfig.model_validate({"policy": _SHORTEST}),
    noise=NOISE,
)
OURS_ORACLE = Row(
    "ours, true lengths",
    PolicyConfig.model_validate({"policy": _SHORTEST}),
    noise=0.0,
)
"""One configuration, ``examples/policies/shortest-within-tenant.yaml``, told more or less."""
