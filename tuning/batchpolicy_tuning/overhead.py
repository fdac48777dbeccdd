"""What a policy costs an engine's scheduler: call by call, and over replays of a trace."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress
from batchpolicy.config import PolicyConfig, config_named
from batchpolicy.engine import Engine, EngineLimits, Run
from batchpolicy.profiles import load_profile
from batchpolicy.workload import Workload
from batchpolicy_tuning.saturation import Saturate, backlog
from batchpolicy_tuning.workloads.catalog import workload_named
from batchpolicy_tuning.workloads.source import arrival_rate

TRACE, STAND_IN = "azure_2023_conv", "chat-and-batch"
PROFILE, LOAD, SEATS = "h100-llama-3.1-8b", 1.1, 64
SLICES, OF, REQUESTS = 8, 48, 400
"""So many slices, spread over a trace cut into 48; what is drawn has 400 requests in each."""
TENANTS, TTFT_SLO_S = 10, 1.0
_ARMS = ("stock", "fcfs", "benefit")


@dataclass(slots=True)
class _Spent:
    """Sums over the replays of one arm."""

    scheduler_s: float = 0.0
    all_s: float = 0.0
    steps: int = 0

    def add(self, run: Run, all_s: float) -> None:
        """One more replay, that took ``all_s`` in all."""
        self.scheduler_s += run.scheduler_s
        self.all_s += all_s
        self.steps += run.steps

    @property
    def per_step_us(self) -> float:
        return 1e6 * self.scheduler_s / self.steps


class Overhead(Bench):
    """Scheduler time of an engine under policies over that of its stock scheduler."""

    summary: ClassVar[str] = "scheduler time of an engine with a policy against stock"

    def __init__(self) -> None:
        self._engine = "vllm"
        self._workload: str | None = None

    @override
    def choose_engine(self, engine: str) -> None:
        self._engine = engine

    @override
    def choose_workload(self, workload: str) -> None:
        self._workload = workload

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        engine = registry.engine(self._engine)
        named = self._workload or found_trace(TRACE, Path.cwd()) or STAND_IN
        slices, of, requests = (2, 240, 80) if quick else (SLICES, OF, REQUESTS)
        source = workload_named(named, pairs=of, requests=requests, classes=None)
        drawn = [_laid_out(source.replication(k * of // slices, 0)) for k in range(slices)]
        calls = engine.scheduler_costs(progress, quick=quick)
        replays = _replays(engine, drawn, progress)
        missing = named == STAND_IN and not self._workload
        return BenchReport(
            f"{engine.version}: scheduler time with a policy against stock fcfs",
            [*calls, *replays],
            (
                *engine.scheduler_cost_notes,
                f"Replays: {slices} times {len(drawn[0].requests)} requests of {source.name} at "
                f"load {LOAD:g} on {SEATS} seats, {TENANTS} tenants in turn, TTFT target "
                f"{TTFT_SLO_S:g} s; the arms take turns.",
                *(
                    [f"{TRACE}.csv.gz is not in data/traces; name it with --workload."]
                    if missing
                    else []
                ),
                "Thread time. Ratios hold on a busy machine; microseconds are this machine's.",
            ),
        )


def found_trace(name: str, start: Path) -> str | None:
    """The file of a trace in ``data/traces``, here or in a folder beside this one."""
    for folder in (start, *sorted(p for p in start.parent.glob("*") if p.is_dir())):
        path = folder / "data" / "traces" / f"{name}.csv.gz"
        if path.is_file():
            return str(path)
    return None


def _laid_out(workload: Workload) -> Workload:
    """One class, so that nobody is displaced; tenants in turn, all with a target."""
    requests = (
        replace(r, priority=0, tenant=f"t{i % TENANTS}", ttft_slo_s=TTFT_SLO_S)
        for i, r in enumerate(workload.requests)
    )
    return replace(workload, requests=tuple(requests))


def _replays(engine: Engine, drawn: Sequence[Workload], progress: Progress) -> list[Measurement]:
    profile = load_profile(PROFILE)
    limits = EngineLimits(
        max_num_seqs=SEATS, max_num_batched_tokens=2048, kv_blocks=profile.kv_tokens // 16
    )
    progress("finding what fcfs sustains")
    full = Saturate(backlog(drawn, SEATS), limits, profile.cost, 0)(engine)
    factor = arrival_rate(drawn) / (LOAD * full.requests_per_s)
    configs: dict[str, PolicyConfig | None] = {
        arm: None if arm == "stock" else config_named(arm) for arm in _ARMS
    }
    spent = {arm: _Spent() for arm in _ARMS}
    for k, workload in enumerate(drawn):
        progress(f"replaying slice {k + 1} of {len(drawn)}")
        stretched = workload.stretched(factor)
        # Each comes first as often as the others: whoever does warms the caches.
        for i in range(len(_ARMS)):
            arm = _ARMS[(k + i) % len(_ARMS)]
            started = time.thread_time()
            run = engine.replay(stretched, configs[arm], limits, profile.cost)
            spent[arm].add(run, time.thread_time() - started)
    return _figures(spent)


def _figures(spent: dict[str, _Spent]) -> list[Measurement]:
    stock = spent["stock"]
    found = [
        _at_most(
            f"replay under {arm}: scheduler time per step",
            one.per_step_us / stock.per_step_us,
            most,
            f"{stock.per_step_us:.0f} to {one.per_step_us:.0f} us",
        )
        for arm, most in (("fcfs", 1.01), ("benefit", 1.05))
        for one in [spent[arm]]
    ]
    speed = stock.steps / stock.all_s
    return [
        *found,
        _at_most(
            "replay of stock: all its time over the scheduler's",
            stock.all_s / stock.scheduler_s,
            1.25,
            "the rest is the virtual clock",
        ),
        Measurement(
            "replay of stock: speed", f"{speed:,.0f} steps/s", ">= 1,500 steps/s", speed >= 1500
        ),
    ]


def _at_most(what: str, ratio: float, most: float, details: str) -> Measurement:
    return Measurement(what, f"{ratio:.3f}x ({details})", f"<= {most:g}x", ratio <= most)
