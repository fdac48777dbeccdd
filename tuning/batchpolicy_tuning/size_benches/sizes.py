"""``batchpolicy bench sizes``: what orders by size gain at high load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy_tuning.ratio import Ratio
from batchpolicy_tuning.size_benches.arms import WEIGHT, Arm, noisy_oracle, tau_of
from batchpolicy_tuning.size_benches.latencies import Latencies, served
from batchpolicy_tuning.size_benches.setting import (
    CHATS,
    CHATS_NOTE,
    ENGINE_NOTE,
    SEATS,
    TOLD,
    Draws,
    draws_at,
)

LOAD = 1.1
SEEDS, REQUESTS = 8, 1000
TAU = 0.6
"""Of the predictor that the goal speaks of."""
LOWER, LONGER, NEVER_UNDER = 2.8, 1.2, 0.95
FCFS = Arm("fcfs")
UNBOUNDED = Arm("shortest-first", TAU, bounded=False)
BY_SIZE = ("shortest-remaining", "shortest-first")
ARMS = (
    FCFS,
    *(Arm("shortest-remaining", tau) for tau in (0.0, TAU, 1.0)),
    *(Arm("shortest-first", tau) for tau in (None, 0.0, 0.3, TAU, 1.0)),
    UNBOUNDED,
    Arm("highest-response-ratio", TAU),
    Arm("boosted-arrival", TAU),
    Arm("multilevel-feedback"),
    Arm("multilevel-feedback", bounded=False),
    Arm("least-attained-service"),
)
_Runs = Mapping[Arm, Sequence[Latencies]]
"""By arm, one for each draw."""


class SizesBench(Bench):
    """Latency under orders by size, by how good predictions are, against fcfs."""

    summary: ClassVar[str] = "latency under orders by size and noisy predictions against fcfs"
    engine: ClassVar[str] = "light"

    def __init__(self) -> None:
        self._workload = CHATS

    @override
    def choose_workload(self, workload: str) -> None:
        self._workload = workload

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        engine = registry.engine(self.engine)
        seeds, requests = (2, 250) if quick else (SEEDS, REQUESTS)
        progress(f"finding load {LOAD:g} of {self._workload}")
        draws = draws_at(engine, self._workload, LOAD, seeds=seeds, requests=requests)
        bare = FCFS.config(draws, np.inf)
        waits_s = [served(engine, bare, workload).longest_wait_s for workload in draws.told]
        max_wait_s = float(np.mean(waits_s))
        runs: dict[Arm, Sequence[Latencies]] = {}
        for arm in ARMS:
            progress(f"{arm.label}: {seeds} draws")
            config = arm.config(draws, max_wait_s)
            runs[arm] = [served(engine, config, workload) for workload in draws.measured]
        return BenchReport(
            f"{engine.version}: orders by size at load {LOAD:g} on {draws.name}",
            list(_measurements(runs)),
            _notes(draws, max_wait_s),
            [_table(runs)],
        )


def _measurements(runs: _Runs) -> Iterator[Measurement]:
    for policy in BY_SIZE:
        arm = Arm(policy, TAU)
        lower = times_lower(runs, arm)
        yield Measurement(
            f"{arm.label}: times lower mean latency per output token than fcfs",
            f"{lower} ({1e3 * lower.over:.1f} to {1e3 * lower.under:.1f} ms)",
            f">= {LOWER:g}x",
            lower.value >= LOWER,
            "" if lower.value >= LOWER else _why_no_lower(runs),
        )
        longer = times_longest(runs, arm)
        yield Measurement(
            f"{arm.label}: longest wait over that of fcfs",
            f"{longer} ({longer.under:.1f} to {longer.over:.1f} s)",
            f"<= {LONGER:g}x",
            longer.value <= LONGER,
            ""
            if longer.value <= LONGER
            else "who is put off just before the bound, or gave way, waits beyond it",
        )
        blind = times_lower(runs, Arm(policy, 0.0))
        yield Measurement(
            f"{policy}, tau 0: times lower mean latency per output token than fcfs",
            str(blind),
            f">= {NEVER_UNDER:g}x",
            blind.value >= NEVER_UNDER,
        )


def _why_no_lower(runs: _Runs) -> str:
    lower, longer = times_lower(runs, UNBOUNDED), times_longest(runs, UNBOUNDED)
    return (
        f"the bound on waits takes the rest: {UNBOUNDED.label}, is at {lower.value:.2f}x, with "
        f"waits {longer.value:.1f} times as long"
    )


def times_lower(runs: _Runs, arm: Arm) -> Ratio:
    """Latency per output token under fcfs over that under ``arm``."""
    return Ratio.of(
        [one.per_token_s for one in runs[FCFS]], [one.per_token_s for one in runs[arm]]
    )


def times_longest(runs: _Runs, arm: Arm) -> Ratio:
    """Longest wait under ``arm`` over that under fcfs."""
    return Ratio.of(
        [one.longest_wait_s for one in runs[arm]], [one.longest_wait_s for one in runs[FCFS]]
    )


def _table(runs: _Runs) -> ResultTable:
    return ResultTable(
        "All orders",
        (
            "order",
            "ms/token",
            "times lower",
            "E2E mean",
            "E2E p99",
            "longest wait",
            "over fcfs",
            "E2E, long quarter",
            "recomputed",
            "output tok/s",
        ),
        [_row(runs, arm) for arm in runs],
        "Times lower: mean latency per output token under fcfs over that of the order. Longest "
        "wait: longest time that a request of a draw was without a token, before the first or "
        "between two, preempted ones included. Long quarter: by prompt and answer together.",
    )


def _row(runs: _Runs, arm: Arm) -> Sequence[str]:
    def mean(name: str) -> float:
        return float(np.mean([getattr(one, name) for one in runs[arm]]))

    return (
        arm.label,
        f"{1e3 * mean('per_token_s'):.1f}",
        str(times_lower(runs, arm)),
        f"{mean('mean_s'):.2f} s",
        f"{mean('p99_s'):.1f} s",
        f"{mean('longest_wait_s'):.1f} s",
        str(times_longest(runs, arm)),
        f"{mean('long_s'):.1f} s",
        f"{mean('recomputed'):.0%}",
        f"{mean('tokens_per_s'):,.0f}",
    )


def _notes(draws: Draws, max_wait_s: float) -> Sequence[str]:
    taus = ", ".join(
        f"{tau_of(noisy_oracle(draws, tau), draws):.2f} for {tau:g}" for tau in (0.0, 0.3, TAU)
    )
    return (
        f"{len(draws.measured)} draws of about {draws.requests:,} requests, the same for all; "
        f"each at load {LOAD:g} of what fcfs sustains on it, all requests measured to their end. "
        "Means over draws, ratios of means with intervals at 95%, paired by draw. The queue "
        f"grows as long as requests come: {draws.requests / SEATS:.0f} of them for each seat "
        "here, and with more of them all factors grow.",
        f"bounds.max_wait_s is {max_wait_s:.1f} s, with turns: none: the longest wait under fcfs, "
        f"mean of {TOLD} other draws; for multilevel-feedback and least-attained-service it is "
        "promote_s.",
        f"Predictions: noisy-oracle, whose tau on these lengths is {taus}. An output token counts "
        f"as {WEIGHT:g} of a prompt, but for shortest-remaining, where it counts as one, its "
        "default; all else is as it comes.",
        ENGINE_NOTE,
        *([CHATS_NOTE] if draws.name == CHATS else []),
    )
