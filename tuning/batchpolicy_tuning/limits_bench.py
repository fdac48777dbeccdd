"""What limits that follow the TPOT slack gain over limits that stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar

from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.config import LimitSettings, PolicyConfig, PolicySpec
from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.profiles import load_profile
from batchpolicy.quantities import format_seconds
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_tuning.capacity import Setting, at_load, best_of, highest
from batchpolicy_tuning.workloads.generated import Generated
from batchpolicy_tuning.workloads.source import arrival_rate
from batchpolicy_tuning.workloads.streams import Spread, Stream, bursty

GOAL = 1.08
CV = 4.0
"""Of the gaps between arrivals: bursts."""
STEP_TOKENS, SEATS = 8192, 256
"""Start values under the controller; the latter also the most seats of a static setting."""
TOKENS = (128, 192, 256, 320, 400, 512, 640, 800, 1024, 1536, 2048)
FEW_SEATS = (64, SEATS)
DEFAULT_TOKENS = 2048
"""vLLM's token budget where nobody names one, on GPUs of less than 70 GiB; others have more."""
GROUPS, REPLICATIONS, REQUESTS = 4, 3, 200
NEAR = 5.0
"""Requests a second from which the first search starts."""
FINE = 1.02
"""Loads are told apart by this ratio."""


def _stream(rate: float, prompt: Spread, output: Spread) -> Stream:
    return bursty(rate, CV, prompt, output, low=8, max_tokens=2048)


_CHAT = _stream(4.0, (500, 0.8, 4_000), (150, 0.7, 800))
_DOCUMENTS = _stream(1.0, (4_000, 0.6, 16_000), (60, 0.7, 400))
_WRITING = _stream(1.0, (200, 0.6, 1_000), (600, 0.5, 1_500))
MIXES: Mapping[str, Mapping[str, Stream]] = {
    "chat": {"chat": _CHAT},
    "chat and documents": {"chat": _CHAT, "documents": _DOCUMENTS},
    "chat and writing": {"chat": _CHAT, "writing": _WRITING},
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A mix of requests on some hardware, and the target."""

    mix: str
    profile: str
    target_s: float

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{self.mix}, {self.profile}, {format_seconds(self.target_s)}"

    def workloads(self, first: int, count: int, requests: int) -> list[Workload]:
        """Replications from ``first`` on, at one request a second on average."""
        source = Generated(self.mix, MIXES[self.mix], requests)
        drawn = [source.replication(k, 0) for k in range(first, first + count)]
        rate = arrival_rate(drawn)
        return [workload.stretched(rate) for workload in drawn]


SCENARIOS = (
    *(Scenario(mix, "a100-llama-3.1-8b", 0.03) for mix in MIXES),
    Scenario("chat and documents", "h100-llama-3.1-8b", 0.02),
    Scenario("chat and documents", "h100-llama-3.1-70b-tp4", 0.05),
)


@dataclass(frozen=True, slots=True)
class Group:
    """Highest loads on the same workloads, in requests a second; and TTFT p99 at one load."""

    default: float
    tuned: float
    ordered: float
    hindsight: float
    controlled: float
    tuned_ttft_s: float
    controlled_ttft_s: float
    """At the load that the tuned setting sustains."""


class Trial:
    """Searches loads for one scenario."""

    def __init__(self, engine: Engine, scenario: Scenario, requests: int) -> None:
        self._engine = engine
        self._scenario = scenario
        self._profile = load_profile(scenario.profile)
        self._requests = requests

    @property
    def statics(self) -> list[Setting]:
        """All settings of the sweep: tokens, seats, and a cap on parts of prompts or none."""
        return [
            self._static(tokens, seats, chunk)
            for tokens in TOKENS
            for seats in FEW_SEATS
            for chunk in (0, tokens // 2)
            if tokens >= seats  # as vLLM demands
        ]

    def tune(self, settings: Sequence[Setting], replications: int) -> tuple[Setting, float]:
        """The best static setting on workloads that take no further part."""
        return self._best(settings, self._workloads(0, replications), NEAR)

    def group(self, k: int, settings: Sequence[Setting], tuned: Setting, near: float) -> Group:
        """Everything on the k-th group of workloads."""
        workloads = self._workloads(100 * (k + 1), REPLICATIONS)
        load = self._highest(tuned, workloads, near) or near
        controlled = self._controlled()
        return Group(
            default=self._highest(self._static(DEFAULT_TOKENS, SEATS, 0), workloads, load / 2),
            tuned=load,
            ordered=self._highest(replace(tuned, config=_config(None)), workloads, load),
            hindsight=self._best(settings, workloads, load)[1],
            controlled=self._highest(controlled, workloads, load),
            tuned_ttft_s=at_load(self._engine, tuned, self._cost, workloads, load).ttft_p99_s,
            controlled_ttft_s=at_load(
                self._engine, controlled, self._cost, workloads, load
            ).ttft_p99_s,
        )

    @property
    def _cost(self) -> StepCost:
        return self._profile.cost

    def _workloads(self, first: int, count: int) -> list[Workload]:
        return self._scenario.workloads(first, count, self._requests)

    def _static(self, tokens: int, seats: int, chunk: int) -> Setting:
        blocks = self._profile.kv_tokens // 16
        return Setting(
            EngineLimits(
                max_num_seqs=seats,
                max_num_batched_tokens=tokens,
                kv_blocks=blocks,
                long_prefill_token_threshold=chunk,
            )
        )

    def _controlled(self) -> Setting:
        start = self._static(STEP_TOKENS, SEATS, 0)
        return replace(start, config=_config(self._scenario.target_s))

    def _holds(self, setting: Setting, workloads: Sequence[Workload], load: float) -> bool:
        found = at_load(self._engine, setting, self._cost, workloads, load)
        return found.meets(self._scenario.target_s)

    def _highest(self, setting: Setting, workloads: Sequence[Workload], near: float) -> float:
        return highest(lambda load: self._holds(setting, workloads, load), near, FINE)

    def _best(
        self, settings: Sequence[Setting], workloads: Sequence[Workload], near: float
    ) -> tuple[Setting, float]:
        return best_of(
            settings, lambda setting, load: self._holds(setting, workloads, load), near, FINE
        )


class MovingLimits(Bench):
    """Static limits of all sizes against limits that follow the TPOT slack."""

    summary: ClassVar[str] = "highest load within a TPOT target: static limits against moving ones"
    engine: ClassVar[str] = "light"

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        engine = registry.engine(self.engine)
        found: dict[Scenario, list[Group]] = {}
        tables: list[ResultTable] = []
        for scenario in SCENARIOS[:1] if quick else SCENARIOS:
            progress(f"{scenario.label}: tuning static limits")
            trial = Trial(engine, scenario, 60 if quick else REQUESTS)
            settings = trial.statics[4::8] if quick else trial.statics
            tuned, near = trial.tune(settings, 1 if quick else REPLICATIONS)
            found[scenario] = []
            for k in range(1 if quick else GROUPS):
                progress(f"{scenario.label}: loads on group {k + 1}")
                found[scenario].append(trial.group(k, settings, tuned, near or NEAR))
            tables.append(_table(scenario, tuned, len(settings), found[scenario]))
        every = [group for groups in found.values() for group in groups]
        return BenchReport(
            f"{engine.version}: limits that follow the TPOT slack",
            _figures(every),
            (
                f"Loads are the highest, {FINE - 1:.0%} apart, at which TPOT p99 over all "
                "requests is within the target and the queue stable: it empties, and its drain "
                f"takes at most 5% of the arrivals' time. Groups of {REPLICATIONS} workloads of "
                f"about {REQUESTS} requests, gamma arrivals of CV {CV:g}, drawn by number; all "
                "arms serve the same ones, in order of arrival.",
                "Tuned: the static setting that sustains most on other workloads of the same mix, "
                "as an operator has it; in hindsight: on the group itself, chosen anew for each, "
                "which nobody has. The controller is not tuned: it is told the target, and learns "
                "step times from the steps.",
            ),
            tables,
        )


def _config(target_s: float | None) -> PolicyConfig:
    limits = LimitSettings(tpot_target_s=target_s)
    return PolicyConfig(policy=PolicySpec(name="fcfs"), preempt="class", limits=limits)


def _figures(groups: Sequence[Group]) -> list[Measurement]:
    def over(what: str, baseline: str, goal: bool, reason: str = "") -> Measurement:
        ratios = [g.controlled / getattr(g, baseline) for g in groups if getattr(g, baseline)]
        if not ratios:
            return Measurement(what, "no load meets the target under the baseline")
        middle = median(ratios)
        low, high = median_interval(ratios)
        if goal and low < GOAL <= middle:
            reason = "the interval reaches below the goal"
        return Measurement(
            what,
            f"{middle:.3f}x, 95% interval {low:.2f} to {high:.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f} over {len(ratios)} groups, "
            f"{sum(ratio < 1.0 for ratio in ratios)} below 1)",
            f">= {GOAL:g}x" if goal else "",
            middle >= GOAL if goal else None,
            reason,
        )

    return [
        over("highest load, over static limits tuned on other workloads", "tuned", True),
        over(
            "highest load, over the best static limits in hindsight",
            "hindsight",
            True,
            "at the highest load nearly all steps are full, and the budget that suits the group "
            "makes them as long as the target too",
        ),
        over(
            "highest load, over vLLM's default",
            "default",
            False,
            f"in {sum(not g.default for g in groups)} of {len(groups)} groups the default meets "
            "the target at no load; they are left out",
        ),
    ]


def median_interval(values: Sequence[float], error: float = 0.05) -> tuple[float, float]:
    """Two of the values between which the median lies but for ``error``, by their ranks.

    The widest pair for fewer than six, which are too few for 5%.
    """
    n, ordered = len(values), sorted(values)
    k, below = 0, 1.0
    # So many of n lie below the median as heads are thrown.
    while 2.0 * (below + math.comb(n, k + 1)) <= error * 2.0**n:
        k += 1
        below += math.comb(n, k)
    return ordered[k], ordered[n - 1 - k]


def _table(
    scenario: Scenario, tuned: Setting, settings: int, groups: Sequence[Group]
) -> ResultTable:
    limits = tuned.limits
    cap = f", parts of {limits.long_prefill_token_threshold}" * bool(
        limits.long_prefill_token_threshold
    )
    named = {
        "default": f"vLLM's default: {DEFAULT_TOKENS:,} tokens, {SEATS} seats",
        "tuned": f"tuned static: {limits.max_num_batched_tokens:,} tokens, "
        f"{limits.max_num_seqs} seats{cap}",
        "ordered": "the same, decodes before prompts",
        "hindsight": "static in hindsight",
        "controlled": "limits that follow the slack",
    }
    rows = [
        (
            label,
            *(f"{getattr(group, name):.2f}" for group in groups),
            f"{median(getattr(group, name) / group.tuned for group in groups):.3f}",
        )
        for name, label in named.items()
    ]
    waits = ", ".join(
        f"{format_seconds(g.tuned_ttft_s)} and {format_seconds(g.controlled_ttft_s)}"
        for g in groups
    )
    return ResultTable(
        f"Highest load, requests/s: {scenario.label}",
        ("limits", *(f"group {k + 1}" for k in range(len(groups))), "median over tuned"),
        rows,
        f"Tuned among {settings} static settings. TTFT p99 at the load of the tuned ones, theirs "
        f"and under the controller: {waits}.",
    )
