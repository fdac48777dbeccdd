"""Small comparisons on the serial engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batchpolicy.engine import Engine
from batchpolicy.profiles import load_profile
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.ab import Plan, Results, run_comparison
from batchpolicy_tuning.arms import arms_named
from tests.support.serial_engine import LIMITS, SerialEngine, request


@dataclass(frozen=True)
class Repeated:
    """The same few requests in every replication."""

    requests: tuple[WorkloadRequest, ...]
    name: str = "repeated"
    notes: Sequence[str] = ()
    replications: None = None

    def replication(self, k: int, seed: int) -> Workload:
        return Workload(self.name, self.requests)


class Silent:
    def stage(self, text: str, total: int) -> None:
        pass

    def advance(self) -> None:
        pass


# 1 ms a token: b0 runs 0 to 1 s, then fcfs takes b1 to 2 s and c to 2.1 s; priority takes c
# first. Three replications fill the backlog: 8 requests until the last starts, at 6.2 s, so
# that UNSTRETCHED leaves the arrivals, 2 per 0.5 s, where they are.
QUEUE = (
    request("b0", 0.0, 1000, request_class="batch", tenant="t0", priority=9, ttft_slo_s=2.05),
    request("b1", 0.0, 1000, request_class="batch", tenant="t0", priority=9, ttft_slo_s=2.05),
    request("c", 0.5, 100, request_class="chat", tenant="t1", ttft_slo_s=1.0),
)
UNSTRETCHED = 4.0 / (8.0 / 6.2)


def compared(
    source: Repeated,
    *policies: str,
    loads: Sequence[float] = (UNSTRETCHED,),
    pairs: int = 10,
    engine: Callable[[], Engine] = SerialEngine,
) -> Results:
    """A comparison that has been made, by default of fcfs and priority."""
    plan = Plan(
        make_engine=engine,
        arms=arms_named(policies or ("fcfs", "priority")),
        source=source,
        loads=loads,
        pairs=pairs,
        limits=LIMITS,
        profile=load_profile("h100-llama-3.1-8b"),
    )
    return run_comparison(plan, Silent())
