"""A long replay in a process of its own, with the memory that it takes.

``python -m batchpolicy_tuning.long_run ENGINE WORKLOAD REQUESTS FACTOR`` prints it as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from batchpolicy import registry
from batchpolicy.config import config_named
from batchpolicy.engine import EngineLimits
from batchpolicy.errors import BatchPolicyError
from batchpolicy.profiles import load_profile
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.catalog import workload_named

PROFILE, SEATS, STEP_TOKENS = "h100-llama-3.1-8b", 128, 2048


def limits_of_bench() -> EngineLimits:
    """Limits of the bench's replays: 128 seats, no prefix cache, the profile's memory."""
    return EngineLimits(
        max_num_seqs=SEATS,
        max_num_batched_tokens=STEP_TOKENS,
        kv_blocks=load_profile(PROFILE).kv_tokens // 16,
    )


@dataclass(frozen=True, slots=True)
class LongRun:
    """What a long replay took."""

    requests: int
    finished: int
    steps: int
    replay_s: float
    before_mb: float
    """Memory of the process when engine and workload were there."""
    peak_mb: float


def long_run(engine: str, workload: str, requests: int, factor: float) -> LongRun:
    """Replay so many requests in fcfs order in a new process; see ``repeated`` for the rest.

    Raises
    ------
    BatchPolicyError
        When the process fails.
    """
    given = (engine, workload, str(requests), repr(factor))
    done = subprocess.run(
        [sys.executable, "-m", "batchpolicy_tuning.long_run", *given],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise BatchPolicyError(f"the replay of {requests:,} requests failed: {said[0]}")
    return LongRun(**json.loads(done.stdout))


def repeated(workload: Workload, requests: int) -> Workload:
    """The workload again and again, one behind the other, until there are so many requests."""
    gap_s = workload.span_s / max(len(workload.requests) - 1, 1)
    period_s = workload.span_s + gap_s
    count = len(workload.requests)

    def again() -> Iterator[WorkloadRequest]:
        for k in range(requests):
            r, shift_s = workload.requests[k % count], (k // count) * period_s
            yield replace(r, id=str(k), arrival_s=r.arrival_s + shift_s)

    return Workload(workload.name, tuple(again()))


def _main(engine: str, named: str, requests: str, factor: str) -> None:
    # An embedded workload is drawn in the size of a trace, and then repeated as well.
    source = workload_named(named, pairs=1, requests=20_000)
    workload = repeated(source.replication(0, 0).stretched(float(factor)), int(requests))
    made, cost = registry.engine(engine), load_profile(PROFILE).cost
    before_mb = _memory_mb("VmRSS")
    started = time.thread_time()
    run = made.replay(workload, config_named("fcfs"), limits_of_bench(), cost)
    replay_s = time.thread_time() - started
    finished = int((run.status == int(Status.FINISHED)).sum())
    peak_mb = _memory_mb("VmHWM")
    told = LongRun(len(workload.requests), finished, run.steps, replay_s, before_mb, peak_mb)
    print(json.dumps(asdict(told)))


def _memory_mb(what: str) -> float:
    # Of this process alone, where the resource module's also knows its parent's.
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise BatchPolicyError(f"/proc/self/status says no {what}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
