"""An engine as a queue of the textbook: seats are servers, a request a service of some steps."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np

from batchpolicy.engine import Engine, EngineLimits, Run, StepRecord
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest

MEAN_STEPS = 20
STEP_S = 1.0 / MEAN_STEPS
"""Service takes 1 s on average, in steps so short that it ends at nearly any time."""


def poisson(count: int, rate: float, seed: int) -> Workload:
    """Poisson arrivals with geometric numbers of tokens: exponential service of 1 s, nearly."""
    rng = random.Random(seed)

    def drawn() -> Iterator[WorkloadRequest]:
        now_s = 0.0
        for i in range(count):
            now_s += rng.expovariate(rate)
            steps = 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / MEAN_STEPS))
            yield WorkloadRequest(
                id=f"r{i}", arrival_s=now_s, prompt_tokens=1, output_tokens=steps, max_tokens=steps
            )

    return Workload("poisson", tuple(drawn()))


def served(
    engine: Engine, workload: Workload, servers: int, *, watch: bool = False
) -> tuple[Run, list[StepRecord]]:
    """The run with so many seats in the engine's own order, and its steps if watched."""
    limits = EngineLimits(
        max_num_seqs=servers,
        max_num_batched_tokens=max(64, servers),
        kv_blocks=100_000,
        max_model_len=1_000_000,
    )
    steps: list[StepRecord] = []
    cost = FormulaCost(base_s=STEP_S)
    run = engine.replay(workload, None, limits, cost, observer=steps.append if watch else None)
    return run, steps


def sojourn_s(run: Run) -> float:
    """Mean time from arrival to end."""
    return float((run.finished_s - _arrival_s(run)).mean())


def waited_s(run: Run) -> float:
    """Mean time from arrival to start."""
    return float((run.first_scheduled_s - _arrival_s(run)).mean())


def _arrival_s(run: Run) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([r.arrival_s for r in run.workload.requests])


def erlang_wait_s(servers: int, rate: float) -> float:
    """Mean wait of M/M/c with service of 1 s on average, by Erlang's formula.

    With what the engine's steps change. Geometric service varies a little less than
    exponential: exact for one server (Pollaczek and Khinchine), for more by Lee and Longton's
    rule. And who finds a seat while others run waits for the next step, half of one on
    average; one server that is free starts at once.
    """
    busy = rate / servers
    terms = [rate**k / math.factorial(k) for k in range(servers)]
    last = rate**servers / math.factorial(servers) / (1.0 - busy)
    squared_variation = 1.0 - 1.0 / MEAN_STEPS
    wait_s = last / (sum(terms) + last) / (servers - rate) * (1.0 + squared_variation) / 2.0
    return wait_s if servers == 1 else wait_s + STEP_S / 2


def littles_law(run: Run, steps: list[StepRecord]) -> tuple[float, float]:
    """Mean number of requests that are there, as seen in the steps and by Little's law.

    A request is seen from the step after its arrival on, half a step later.
    """
    present = sum((s.running + s.waiting) * s.duration_s for s in steps) / run.end_s
    rate = len(run.workload.requests) / run.end_s
    return present, rate * (sojourn_s(run) - STEP_S / 2)


def idle_seats(steps: list[StepRecord], servers: int) -> int:
    """Steps in which somebody waits beside an empty seat."""
    return sum(step.running < servers for step in steps if step.waiting)
