"""A comparison on the serial engine, small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchpolicy.profiles import load_profile
from batchpolicy.targets import parse_gates
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.ab import Plan, Results, run_comparison
from batchpolicy_tuning.arms import arms_named
from tests.support.serial_engine import LIMITS, SerialEngine, request


@dataclass(frozen=True)
class Same:
    """The same few requests in every replication."""

    requests: tuple[WorkloadRequest, ...]
    name: str = "same"
    notes: Sequence[str] = ()
    replications: None = None

    def replication(self, k: int, seed: int) -> Workload:
        return Workload(self.name, self.requests)


class Silent:
    def stage(self, text: str, total: int) -> None:
        pass

    def advance(self) -> None:
        pass


# Serial, 1 ms a token: b0 runs 0 to 1 s, then fcfs takes b1 to 2 s and c to 2.1 s; priority
# takes c first, to 1.1 s, and b1 to 2.1 s.
QUEUE = Same(
    (
        request("b0", 0.0, 1000, request_class="batch", priority=9),
        request("b1", 0.0, 1000, request_class="batch", priority=9),
        request("c", 0.5, 100, request_class="chat"),
    )
)
# Three replications fill the backlog: 8 requests until the last starts, at 6 x 1 + 2 x 0.1 s.
# Arrivals come at 2 per 0.5 s, so that this load leaves them where they are.
UNSTRETCHED = 4.0 / (8.0 / 6.2)


def compared(*gates: str, pairs: int = 8) -> Results:
    """fcfs against priority."""
    plan = Plan(
        make_engine=SerialEngine,
        arms=arms_named(("fcfs", "priority")),
        source=QUEUE,
        loads=[UNSTRETCHED],
        pairs=pairs,
        limits=LIMITS,
        profile=load_profile("h100-llama-3.1-8b"),
        gates=parse_gates(gates),
    )
    return run_comparison(plan, Silent())
