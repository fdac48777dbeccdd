"""How many requests per second first-come-first-served sustains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from batchpolicy.engine import Engine, EngineLimits, Run
from batchpolicy.errors import WorkloadError
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload

SEATS_FILLED = 8
"""Requests in the backlog, as a multiple of the seats, so that the start weighs little."""


class Sustained(NamedTuple):
    """What an engine sustains."""

    requests_per_s: float
    engine_version: str


@dataclass(frozen=True, slots=True)
class Saturate:
    """Finds the rate at which the engine's own order works through a backlog."""

    backlog: Workload
    limits: EngineLimits
    cost: StepCost
    seed: int

    def __call__(self, engine: Engine, /) -> Sustained:
        """Replay the backlog and take its rate; see ``sustained_rate``.

        Raises
        ------
        WorkloadError
            When a request cannot fit, or nothing ever queues.
        """
        run = engine.replay(self.backlog, None, self.limits, self.cost, seed=self.seed)
        return Sustained(sustained_rate(run), engine.version)


def backlog(replications: Sequence[Workload], seats: int) -> Workload:
    """Work that is all there at time 0: replications joined until they fill the seats 8 times.

    They are taken spread evenly over all, so that no part of a trace stands for the whole.
    Requests that come after another's end, or could start later, are there at once as well.
    """
    joined: list[Workload] = []
    for k in _spread(len(replications)):
        joined.append(replications[k])
        if sum(len(part.requests) for part in joined) >= SEATS_FILLED * seats:
            break
    requests = (
        replace(
            r,
            id=f"{i}/{r.id}",
            # Replications name their sessions alike, and share no conversation.
            session=f"{i}/{r.session}" if r.session else "",
            arrival_s=0.0,
            arrival_after="",
            gap_s=0.0,
            ready_at_s=-math.inf,
            deadline_s=math.inf,
            cancel_at_s=math.inf,
            queue_ttl_s=math.inf,
        )
        for i, part in enumerate(joined)
        for r in part.requests
    )
    return Workload(replications[0].name, tuple(requests))


def sustained_rate(run: Run) -> float:
    """Requests per second that were completed while others waited.

    For a run whose work was all there at time 0. The clock stops when the last request
    leaves the queue: what comes after is drain. Counted are the requests finished by
    then, and of those that still run the part of their stay that is over.

    Raises
    ------
    WorkloadError
        When nothing ever queued.
    """
    drained_s = float(np.nanmax(run.first_scheduled_s))
    if not drained_s > 0.0:
        raise WorkloadError(
            f"{run.workload.name}: all {len(run.workload.requests)} requests start in the first "
            "step, so that no load can be set. Use more requests per replication, or fewer seats."
        )
    stay_s = np.maximum(run.finished_s - run.first_scheduled_s, 1e-12)
    done = np.clip((drained_s - run.first_scheduled_s) / stay_s, 0.0, 1.0)
    return float(np.nansum(done)) / drained_s


def _spread(n: int) -> list[int]:
    """0 to n - 1 so that any beginning is spread over the whole, as in 0, 4, 2, 6, 1, ..."""
    bits = max((n - 1).bit_length(), 1)
    return [k for i in range(1 << bits) if (k := int(f"{i:0{bits}b}"[::-1], 2)) < n]
