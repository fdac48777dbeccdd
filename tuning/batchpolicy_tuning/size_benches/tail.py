"""``batchpolicy bench tail``: boosted arrivals against the least remaining, lengths known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.config import PolicyConfig, PolicySpec, PredictorSpec
from batchpolicy.engine import Engine
from batchpolicy.policies.boosted_arrival import BoostedArrival
from batchpolicy.preemption import Preemption
from batchpolicy_tuning.ratio import Ratio
from batchpolicy_tuning.size_benches.arms import WEIGHT
from batchpolicy_tuning.size_benches.latencies import Latencies, served
from batchpolicy_tuning.size_benches.setting import (
    CHATS,
    CHATS_NOTE,
    ENGINE_NOTE,
    Draws,
    draws_at,
)

SEEDS, REQUESTS = 8, 800
LESS_TAIL, MORE_MEAN = 0.75, 1.10
SPREAD = 20.0
"""Times as far apart requests come where nobody is to wait."""
BOOST = BoostedArrival().boost_tokens
SWEEP = (BOOST / 8, BOOST / 4, BOOST / 2, BOOST, 2 * BOOST, 4 * BOOST, 16 * BOOST)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload at a load."""

    workload: str
    load: float
    cv: float = 1.0
    """Of the gaps between arrivals, of chats."""

    @property
    def label(self) -> str:
        """Its name in tables."""
        bursts = f", gaps of CV {self.cv:g}" if self.workload == CHATS else ""
        return f"{self.workload} at load {self.load:g}{bursts}"


SCENARIOS = (Scenario(CHATS, 0.95, cv=4.0), Scenario("chat-and-batch", 1.0))
LOAD = 1.0
"""Of a workload that is named."""


def _arm(policy: str, *, gives_way: bool = False, **params: float) -> PolicyConfig:
    return PolicyConfig(
        policy=PolicySpec(name=policy, params=params),
        predictor=PredictorSpec(name="oracle"),
        preempt=Preemption(by="benefit") if gives_way else None,
    )


def _boosted(tokens: float) -> str:
    return f"boosted-arrival, {tokens:,.0f}"


BASELINE, OURS = "shortest-remaining", _boosted(BOOST)
ARMS: Mapping[str, PolicyConfig] = {
    BASELINE: _arm("shortest-remaining"),
    f"{BASELINE}, output_weight {WEIGHT:g}": _arm("shortest-remaining", output_weight=WEIGHT),
    "shortest-first": _arm("shortest-first", output_weight=WEIGHT),
    **{_boosted(tokens): _arm("boosted-arrival", boost_tokens=tokens) for tokens in SWEEP},
    f"{OURS}, preempt: benefit": _arm("boosted-arrival", gives_way=True),
    "fcfs": _arm("fcfs"),
}
_Runs = Mapping[str, Sequence[Latencies]]
"""By arm, one for each draw."""


class TailBench(Bench):
    """Mean and p99 of latency under boosted arrivals, by the boost."""

    summary: ClassVar[str] = "p99 of latency under boosted arrivals against shortest remaining"
    engine: ClassVar[str] = "light"

    def __init__(self) -> None:
        self._scenarios: tuple[Scenario, ...] = SCENARIOS

    @override
    def choose_workload(self, workload: str) -> None:
        self._scenarios = (Scenario(workload, LOAD),)

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        engine = registry.engine(self.engine)
        seeds, requests = (2, 150) if quick else (SEEDS, REQUESTS)
        measured: list[Measurement] = []
        tables: list[ResultTable] = []
        for scenario in self._scenarios:
            progress(f"finding the load of {scenario.label}")
            draws = draws_at(
                engine,
                scenario.workload,
                scenario.load,
                seeds=seeds,
                requests=requests,
                cv=scenario.cv,
            )
            runs = {
                label: _served(engine, label, config, draws, scenario, progress)
                for label, config in ARMS.items()
            }
            measured += _measurements(scenario, runs, _idle_p99_s(engine, draws))
            tables.append(_table(scenario, draws, runs))
        return BenchReport(
            f"{engine.version}: tails under boosted arrivals, lengths known",
            measured,
            (
                f"{seeds} draws, the same for all, at load of what fcfs sustains on each; all "
                "requests measured to their end, waits without a bound. Means over draws of the "
                "mean and of the p99 of each, and intervals at 95% of the ratios of means, "
                "paired by draw. All are told the true lengths (oracle), which nobody has.",
                f"The boost of {BOOST:,.0f} tokens, the default, was chosen on draws of another "
                f"seed. Where nothing is said an output token counts {WEIGHT:g} of a prompt, and "
                f"for {BASELINE} 1, its default. It displaces; the others do not.",
                ENGINE_NOTE,
                *([CHATS_NOTE] if any(s.workload == CHATS for s in self._scenarios) else []),
            ),
            tables,
        )


def _served(
    engine: Engine,
    label: str,
    config: PolicyConfig,
    draws: Draws,
    scenario: Scenario,
    progress: Progress,
) -> Sequence[Latencies]:
    progress(f"{scenario.label}: {label}")
    return [served(engine, config, workload) for workload in draws.measured]


def _idle_p99_s(engine: Engine, draws: Draws) -> float:
    """What is left of p99 where hardly anybody waits."""
    alone = [served(engine, ARMS["fcfs"], w.stretched(SPREAD)) for w in draws.measured]
    return float(np.mean([one.p99_s for one in alone]))


def _measurements(scenario: Scenario, runs: _Runs, idle_s: float) -> Iterator[Measurement]:
    tail, mean = _p99(runs, OURS), _mean(runs, OURS)
    yield Measurement(
        f"{scenario.label}: E2E p99 over that of {BASELINE}",
        f"{tail} ({tail.under:.1f} to {tail.over:.1f} s)",
        f"<= {LESS_TAIL:g}x",
        tail.value <= LESS_TAIL,
        ""
        if tail.value <= LESS_TAIL
        else f"{idle_s:.1f} s of both are what the longest answers take on an engine at "
        f"1/{SPREAD:g} of the load, which no order shortens",
    )
    yield Measurement(
        f"{scenario.label}: E2E mean over that of {BASELINE}",
        f"{mean} ({mean.under:.2f} to {mean.over:.2f} s)",
        f"<= {MORE_MEAN:g}x",
        mean.value <= MORE_MEAN,
    )


def _p99(runs: _Runs, label: str) -> Ratio:
    return Ratio.of([one.p99_s for one in runs[label]], [one.p99_s for one in runs[BASELINE]])


def _mean(runs: _Runs, label: str) -> Ratio:
    return Ratio.of([one.mean_s for one in runs[label]], [one.mean_s for one in runs[BASELINE]])


def _table(scenario: Scenario, draws: Draws, runs: _Runs) -> ResultTable:
    return ResultTable(
        scenario.label,
        (
            "order",
            "E2E mean",
            "over the first",
            "E2E p99",
            "over the first",
            "longest wait",
            "E2E, long quarter",
            "recomputed",
        ),
        [_row(runs, label) for label in runs],
        f"{len(draws.measured)} draws of about {draws.requests:,} requests. Longest wait: "
        "longest time that a request of a draw was without a token.",
    )


def _row(runs: _Runs, label: str) -> Sequence[str]:
    def mean(name: str) -> float:
        return float(np.mean([getattr(one, name) for one in runs[label]]))

    return (
        label,
        f"{mean('mean_s'):.2f} s",
        str(_mean(runs, label)),
        f"{mean('p99_s'):.1f} s",
        str(_p99(runs, label)),
        f"{mean('longest_wait_s'):.1f} s",
        f"{mean('long_s'):.1f} s",
        f"{mean('recomputed'):.0%}",
    )
