"""What the light engine reaches: requests per second, memory, and the laws of queues."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress
from batchpolicy.config import config_named
from batchpolicy.engine import Engine
from batchpolicy.errors import BatchPolicyError
from batchpolicy.profiles import load_profile
from batchpolicy.workload import Workload
from batchpolicy_tuning import queueing
from batchpolicy_tuning.long_run import (
    PROFILE,
    SEATS,
    STEP_TOKENS,
    limits_of_bench,
    long_run,
)
from batchpolicy_tuning.overhead import STAND_IN, TRACE, found_trace
from batchpolicy_tuning.saturation import Saturate, backlog
from batchpolicy_tuning.workloads.catalog import workload_named
from batchpolicy_tuning.workloads.source import arrival_rate

LOAD = 0.9
GOALS = {"fcfs": 5_000, "benefit": 3_000}
"""Requests per second on one core, by policy."""
MOST_MB, MANY, VERY_MANY = 300, 200_000, 1_000_000
TENANTS, TTFT_SLO_S = 10, 1.0
_TIMES = 3
_OTHERS = (
    "For scale, other people's figures for simulators of theirs, on other machines and "
    "workloads: BLIS (Go) 1,220 requests/s, Splitwise-sim 470. Neither was run here."
)


class LightSpeed(Bench):
    """Speed, memory and soundness of the light engine."""

    summary: ClassVar[str] = (
        "requests/s and memory of the engine light, and queues against formulas"
    )
    engine: ClassVar[str] = "light"

    def __init__(self) -> None:
        self._workload: str | None = None

    @override
    def choose_workload(self, workload: str) -> None:
        self._workload = workload

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        engine = registry.engine(self.engine)
        named = self._workload or found_trace(TRACE, Path.cwd()) or STAND_IN
        source = workload_named(named, pairs=1, requests=20_000)
        drawn = _laid_out(source.replication(0, 0), 2_000 if quick else None)
        progress("finding what fcfs sustains")
        profile = load_profile(PROFILE)
        sustained = Saturate(backlog([drawn], SEATS), limits_of_bench(), profile.cost, 0)(engine)
        factor = arrival_rate([drawn]) / (LOAD * sustained.requests_per_s)
        measured = [
            *_speeds(engine, drawn.stretched(factor), progress, 1 if quick else _TIMES),
            *_long_runs(self.engine, named, factor, progress, quick),
            *_queues(engine, progress, quick),
        ]
        missing = named == STAND_IN and not self._workload
        return BenchReport(
            f"{engine.version}: speed, memory, queues",
            measured,
            (
                f"Speed: {len(drawn.requests):,} requests of {source.name} at load {LOAD:g} of "
                f"the {sustained.requests_per_s:.1f} requests/s that fcfs sustains; {SEATS} "
                f"seats, {STEP_TOKENS} tokens a step, no prefix cache, profile {PROFILE}; "
                f"{TENANTS} tenants in turn, TTFT target {TTFT_SLO_S:g} s. Thread time of one "
                f"core, nobody watching the steps; median of {1 if quick else _TIMES}.",
                *(
                    [
                        f"{TRACE}.csv.gz is not in data/traces, so that this is the embedded "
                        f"{STAND_IN}, for which the goals were not set; name the trace with "
                        "--workload."
                    ]
                    if missing
                    else []
                ),
                _OTHERS,
                "Memory: the highest resident size of a new process that reads the workload, "
                "repeats it to that many requests and replays them; workload and interpreter "
                "included. MB are 10^6 bytes.",
                "Queues: one token a step, service of 1 s on average in steps of "
                f"{queueing.STEP_S:g} s, one seat a server; the formulas allow for the steps. "
                "Samples of fixed seeds, whose own error is some 2%.",
            ),
        )


def _laid_out(workload: Workload, most: int | None) -> Workload:
    """One class, tenants in turn, all with a target: benefit has something to weigh."""
    requests = (
        replace(r, priority=0, tenant=f"t{i % TENANTS}", ttft_slo_s=TTFT_SLO_S)
        for i, r in enumerate(workload.requests[:most])
    )
    return replace(workload, requests=tuple(requests))


def _speeds(
    engine: Engine, workload: Workload, progress: Progress, times: int
) -> Iterator[Measurement]:
    limits, cost = limits_of_bench(), load_profile(PROFILE).cost
    spent: dict[str, list[float]] = {policy: [] for policy in GOALS}
    steps = dict.fromkeys(GOALS, 0)
    for k in range(times):
        # They take turns, so that a busy moment meets both.
        for policy in GOALS:
            progress(f"replaying under {policy}, {k + 1} of {times}")
            config = config_named(policy)
            started = time.thread_time()
            run = engine.replay(workload, config, limits, cost)
            spent[policy].append(time.thread_time() - started)
            steps[policy] = run.steps
    for policy, goal in GOALS.items():
        seconds = statistics.median(spent[policy])
        rate = len(workload.requests) / seconds
        yield Measurement(
            f"speed under {policy}",
            f"{rate:,.0f} requests/s, {steps[policy] / seconds:,.0f} steps/s",
            f">= {goal:,} requests/s",
            rate >= goal,
        )


def _long_runs(
    engine: str, named: str, factor: float, progress: Progress, quick: bool
) -> Iterator[Measurement]:
    many = 5_000 if quick else MANY
    progress(f"replaying {many:,} requests in a process of its own")
    run = long_run(engine, named, many, factor)
    yield Measurement(
        f"peak memory at {many:,} requests",
        f"{run.peak_mb:.0f} MB ({run.before_mb:.0f} MB before the replay)",
        f"<= {MOST_MB} MB",
        run.peak_mb <= MOST_MB,
    )
    if quick:
        return
    progress(f"replaying {VERY_MANY:,} requests in a process of its own; takes minutes")
    what = f"{VERY_MANY:,} requests"
    try:
        run = long_run(engine, named, VERY_MANY, factor)
    except BatchPolicyError as fault:
        yield Measurement(what, "did not end", "all end", False, str(fault))
        return
    yield Measurement(
        what,
        f"{run.finished:,} finished in {run.steps:,} steps, {run.replay_s:.0f} s of one core, "
        f"{run.peak_mb:,.0f} MB",
        "all end",
        run.finished == run.requests,
    )


def _queues(engine: Engine, progress: Progress, quick: bool) -> Iterator[Measurement]:
    count = 10_000 if quick else 300_000
    for servers in (1, 2, 8):
        progress(f"M/M/{servers} with {count:,} requests")
        rate = 0.8 * servers
        run, _ = queueing.served(engine, queueing.poisson(count, rate, servers), servers)
        formula_s = queueing.erlang_wait_s(servers, rate)
        waited_s = queueing.waited_s(run)
        yield _near(f"M/M/{servers} at 0.8: mean wait", waited_s, formula_s, " s", 0.05)
    servers = 4
    progress("Little's law and work conservation")
    work = queueing.poisson(count // 10, 0.8 * servers, 5)
    run, steps = queueing.served(engine, work, servers, watch=True)
    present, expected = queueing.littles_law(run, steps)
    yield _near("Little's law: mean number in the engine", present, expected, "", 0.005)
    idle = queueing.idle_seats(steps, servers)
    yield Measurement(
        "work conservation: steps with an empty seat while somebody waits",
        f"{idle} of {len(steps):,}",
        "0",
        idle == 0,
    )


def _near(what: str, value: float, formula: float, unit: str, within: float) -> Measurement:
    off = abs(value - formula) / formula
    return Measurement(
        what,
        f"{value:.4g}{unit} against {formula:.4g}{unit} ({off:.1%} off)",
        f"<= {within:.1%} off",
        off <= within,
    )
