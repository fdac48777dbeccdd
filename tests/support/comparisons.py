"""Comparisons on the serial engine, small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batchpolicy.engine import Engine
from batchpolicy.profiles import load_profile
from batchpolicy.target_grammar import parse_gates
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
    """Progress that nobody watches."""

    def stage(self, text: str, total: int) -> None:
        pass

    def advance(self) -> None:
        pass


# Serial, 1 ms a token: b0 runs 0 to 1 s, then fcfs takes b1 to 2 s and c to 2.1 s, so that c
# waits 1.5 s; priority takes c first, to 1.1 s, which then waits 0.5 s, and b1 to 2.1 s.
QUEUE = (
    request("b0", 0.0, 1000, request_class="batch", tenant="t0", priority=9, ttft_slo_s=2.05),
    request("b1", 0.0, 1000, request_class="batch", tenant="t0", priority=9, ttft_slo_s=2.05),
    request("c", 0.5, 100, request_class="chat", tenant="t1", ttft_slo_s=1.0),
)
FEW = Repeated(QUEUE)
# Three replications fill the backlog: 8 requests until the last starts, at 6 x 1 + 2 x 0.1 s.
# Arrivals come at 2 per 0.5 s, so that this load leaves them where they are.
UNSTRETCHED = 4.0 / (8.0 / 6.2)


def compared(
    source: Repeated = FEW,
    *policies: str,
    loads: Sequence[float] = (UNSTRETCHED,),
    pairs: int = 10,
    processes: int = 1,
    gates: Sequence[str] = (),
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
        processes=processes,
        gates=parse_gates(gates),
    )
    return run_comparison(plan, Silent())
