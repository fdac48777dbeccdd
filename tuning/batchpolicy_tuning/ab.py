"""Policies against each other on the same workloads."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.errors import WorkloadError
from batchpolicy.profiles import Profile
from batchpolicy.targets import Gate
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.arms import Arm
from batchpolicy_tuning.gates import check_gates
from batchpolicy_tuning.metrics import METRICS, Metric
from batchpolicy_tuning.pool import Workers
from batchpolicy_tuning.prefix_cache import refuse_shared_prefixes
from batchpolicy_tuning.replay import Outcome, Replay
from batchpolicy_tuning.saturation import Saturate, backlog
from batchpolicy_tuning.statistics import MARGIN, Comparison, compare
from batchpolicy_tuning.workloads.source import WorkloadSource, arrival_rate

_SHOWN_FAULTS = 10


class Progress(Protocol):
    """Told how far a comparison is."""

    def stage(self, text: str, total: int) -> None:
        """Something begins that has ``total`` parts."""

    def advance(self) -> None:
        """One part is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be compared, on what."""

    make_engine: Callable[[], Engine]
    arms: Sequence[Arm]
    """The first is the baseline."""
    source: WorkloadSource
    loads: Sequence[float]
    """Fractions of the rate that first-come-first-served sustains."""
    pairs: int
    limits: EngineLimits
    profile: Profile
    """How long steps take."""
    seed: int = 0
    processes: int = 1
    margin: float = MARGIN
    """Largest change that is equivalent: of the baseline, or in points of a share."""
    gates: Sequence[Gate] = ()
    cacheless: str = ""
    """The engine, where it has no prefix cache and nobody has said that there be none."""


class Targets(NamedTuple):
    """What requests should meet; inf without target."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class AtLoad:
    """All runs at one load."""

    load: float
    rate: float
    """Mean arrivals per second over all replications."""
    runs: Sequence[Sequence[Outcome]]
    """By arm, then by replication."""
    margin: float = MARGIN

    def queued(self, arm: int) -> bool:
        """Whether any request ever waited, under this arm or under the baseline."""
        return any(run.peak_waiting > 0 for run in (*self.runs[0], *self.runs[arm]))

    def values(self, arm: int, scope: str | None, metric: Metric) -> list[float]:
        """One number for each replication, NaN where there is none."""
        nothing = float("nan")
        return [run.measured.scope(scope).get(metric.key, nothing) for run in self.runs[arm]]

    def against_baseline(self, arm: int, scope: str | None, metric: Metric) -> Comparison:
        """The arm compared with the first one; see ``compare``."""
        return compare(
            self.values(0, scope, metric),
            self.values(arm, scope, metric),
            higher_is_better=metric.higher_is_better,
            in_points=metric.in_points,
            margin=self.margin,
            queued=self.queued(arm),
        )


@dataclass(frozen=True, slots=True)
class Results:
    """A comparison that has been made."""

    plan: Plan
    engine_version: str
    classes: Mapping[str, int]
    """Requests of each class over all replications, the most urgent first."""
    requests: int
    saturation: float
    """Requests per second that are load 1."""
    workload_digest: str
    representative: int
    """The replication that was recorded over time; see ``typical``."""
    targets: Mapping[str, Targets]
    """By class, where all its requests have the same."""
    extended: bool
    """Whether some request is longer than the contexts that the profile was fitted to."""
    loads: Sequence[AtLoad]
    wall_s: float

    def scopes(self) -> list[str | None]:
        """The classes, if there are several, then None for all requests."""
        return [*(self.classes if len(self.classes) > 1 else ()), None]

    def metrics(self, scope: str | None) -> list[Metric]:
        """What is compared in a scope."""
        return [metric for metric in METRICS if scope is None or metric.by_class]


def run_comparison(plan: Plan, progress: Progress) -> Results:
    """Replay every replication at every load under every arm.

    The rate of load 1 is found first, see ``saturation``. All replications are then
    stretched by one factor, so that their mean rate of arrivals is the load times
    that rate and each keeps its bursts; every arm sees the same workloads. Which of
    their requests are measured says ``measured_rows``.

    Raises
    ------
    WorkloadError
        When a request cannot fit into the limits, or no load can be set.
    ConfigError
        When the limits let a step leave the profile's envelope, a request is longer
        than it can time, a gate asks for what is not measured, or requests share
        prefixes and the engine has no cache for them.
    RunFailed
        When a run ends with an error of its own.
    """
    started = time.perf_counter()
    plan.profile.check_limits(plan.limits)
    progress.stage("reading the workload", plan.pairs)
    drawn: list[Workload] = []
    for k in range(plan.pairs):
        drawn.append(plan.source.replication(k, plan.seed))
        progress.advance()
    check_fit(drawn, plan.limits)
    if plan.cacheless:
        refuse_shared_prefixes(
            drawn,
            f"{plan.cacheless} has no prefix cache",
            "compare on an engine that has one, or without it: --no-prefix-cache",
        )
    check_gates(plan.gates, _classes(drawn))
    extended = plan.profile.is_extended(max(_tokens(r) for w in drawn for r in w.requests))
    natural_rate = arrival_rate(drawn)
    with Workers(plan.make_engine, plan.processes) as workers:
        progress.stage(f"finding what fcfs sustains on {plan.source.name}", 1)
        full = workers.one(
            Saturate(
                backlog(drawn, plan.limits.max_num_seqs),
                plan.limits,
                plan.profile.cost,
                plan.seed,
            )
        )
        progress.advance()
        loads = [
            _at_load(
                plan, load, load * full.requests_per_s, drawn, natural_rate, workers, progress
            )
            for load in plan.loads
        ]
    return Results(
        plan=plan,
        engine_version=full.engine_version,
        classes=_classes(drawn),
        requests=sum(len(workload.requests) for workload in drawn),
        saturation=full.requests_per_s,
        workload_digest=_digest(drawn),
        representative=typical(drawn),
        targets=_targets(drawn),
        extended=extended,
        loads=loads,
        wall_s=time.perf_counter() - started,
    )


def _at_load(
    plan: Plan,
    load: float,
    rate: float,
    drawn: Sequence[Workload],
    natural_rate: float,
    workers: Workers,
    progress: Progress,
) -> AtLoad:
    recorded = typical(drawn)
    replays = [
        Replay(
            f"{arm.label}, load {load:g}, replication {k}",
            arm.config,
            stretched,
            plan.limits,
            plan.profile.cost,
            plan.seed,
            record=k == recorded,
        )
        for k, workload in enumerate(drawn)
        for stretched in [workload.stretched(natural_rate / rate)]
        for arm in plan.arms
    ]
    arms = len(plan.arms)
    progress.stage(f"load {load:g}: {arms} policies x {plan.pairs} replications", len(replays))
    ended: dict[int, Outcome] = {}
    for i, outcome in workers.each(replays):
        ended[i] = outcome
        progress.advance()
    runs = [[ended[i] for i in range(arm, len(replays), arms)] for arm in range(arms)]
    return AtLoad(load, rate, runs, plan.margin)


def typical(workloads: Sequence[Workload]) -> int:
    """The replication in the middle when they are sorted by tokens per second that arrive."""

    def tokens_per_s(k: int) -> float:
        w = workloads[k]
        return sum(_tokens(r) for r in w.requests) / max(w.span_s, 1e-9)

    return sorted(range(len(workloads)), key=tokens_per_s)[(len(workloads) - 1) // 2]


def check_fit(workloads: Iterable[Workload], limits: EngineLimits) -> None:
    """Refuse workloads with a request that no engine with these limits could end.

    Raises
    ------
    WorkloadError
        With the requests, up to ten.
    """
    pool = limits.kv_blocks * limits.kv_block_tokens
    faults: list[str] = []
    for k, workload in enumerate(workloads):
        for r in workload.requests:
            tokens = _tokens(r)
            for most, what in ((pool, "the KV pool"), (limits.max_model_len, "max_model_len")):
                if tokens > most:
                    faults.append(
                        f"request {r.id!r} of replication {k}: {r.prompt_tokens:,} prompt and "
                        f"{tokens - r.prompt_tokens:,} output tokens exceed {what} of {most:,}"
                    )
    if faults:
        more = len(faults) - _SHOWN_FAULTS
        shown = faults[:_SHOWN_FAULTS] + ([f"... and {more} more"] if more > 0 else [])
        raise WorkloadError(
            "some requests can never fit; raise --kv-tokens, or leave them out:\n"
            + "\n".join(f"  {fault}" for fault in shown)
        )


def _tokens(r: WorkloadRequest) -> int:
    return r.prompt_tokens + min(r.output_tokens, r.max_tokens)


def _classes(workloads: Sequence[Workload]) -> dict[str, int]:
    counts: dict[str, int] = {}
    priority: dict[str, int] = {}
    for workload in workloads:
        for r in workload.requests:
            counts[r.request_class] = counts.get(r.request_class, 0) + 1
            priority[r.request_class] = min(priority.get(r.request_class, r.priority), r.priority)
    return {name: counts[name] for name in sorted(counts, key=lambda name: (priority[name], name))}


def _targets(workloads: Sequence[Workload]) -> dict[str, Targets]:
    found: dict[str, set[Targets]] = {}
    for workload in workloads:
        for r in workload.requests:
            found.setdefault(r.request_class, set()).add(Targets(r.ttft_slo_s, r.tpot_slo_s))
    return {name: next(iter(same)) for name, same in found.items() if len(same) == 1}


def _digest(workloads: Iterable[Workload]) -> str:
    sha = hashlib.sha256()
    for workload in workloads:
        sha.update(workload.digest().encode())
    return sha.hexdigest()
