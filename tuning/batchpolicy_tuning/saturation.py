"""How many requests per second first-come-first-served sustains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from batchpolicy.engine import Engine, EngineLimits, Run
from batchpolicy.errors import WorkloadError
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_tuning.workloads.source import WorkloadSource

SEATS_FILLED = 8
"""Requests in the backlog, as a multiple of the seats, so that the start weighs little."""


def saturation(
    engine: Engine,
    source: WorkloadSource,
    replications: int,
    limits: EngineLimits,
    cost: StepCost,
    *,
    seed: int = 0,
) -> float:
    """Requests per second that the engine's own order completes while work is waiting.

    Replications, spread evenly over those that will be compared, are joined until
    they fill the seats eight times, and all of it is there at time 0. The clock
    stops when the last request leaves the queue: what comes after is drain. Counted
    are the requests finished by then, and of those that still run the part of their
    stay that is over. This rate is load 1.

    Raises
    ------
    WorkloadError
        When a request cannot fit, or the backlog never queues.
    """
    run = engine.replay(
        _backlog(source, replications, limits, seed), None, limits, cost, seed=seed
    )
    return sustained_rate(run)


def sustained_rate(run: Run) -> float:
    """Requests per second of a run whose work was all there at time 0; see ``saturation``."""
    drained_s = float(np.nanmax(run.first_scheduled_s))
    if not drained_s > 0.0:
        raise WorkloadError(
            f"{run.workload.name}: all {len(run.workload.requests)} requests start in the first "
            "step, so that no load can be set. Use more requests per replication, or fewer seats."
        )
    stay_s = np.maximum(run.finished_s - run.first_scheduled_s, 1e-12)
    done = np.clip((drained_s - run.first_scheduled_s) / stay_s, 0.0, 1.0)
    return float(np.nansum(done)) / drained_s


def _backlog(
    source: WorkloadSource, replications: int, limits: EngineLimits, seed: int
) -> Workload:
    joined: list[Workload] = []
    wanted = SEATS_FILLED * limits.max_num_seqs
    for k in _spread(replications):
        joined.append(source.replication(k, seed))
        if sum(len(part.requests) for part in joined) >= wanted:
            break
    requests = (
        replace(r, id=f"{i}/{r.id}", arrival_s=0.0, deadline_s=math.inf, cancel_at_s=math.inf)
        for i, part in enumerate(joined)
        for r in part.requests
    )
    return Workload(source.name, tuple(requests))


def _spread(n: int) -> Iterator[int]:
    """0 to n - 1 so that any beginning is spread over the whole, as 0, 4, 2, 6, 1, ..."""
    bits = max((n - 1).bit_length(), 1)
    yield from (k for i in range(1 << bits) if (k := int(f"{i:0{bits}b}"[::-1], 2)) < n)
