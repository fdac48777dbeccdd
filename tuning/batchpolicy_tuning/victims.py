"""What the choice of victims costs when the KV cache runs out, on a real scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.config import Bounds, Memory, PolicyConfig, PolicySpec
from batchpolicy.engine import Engine, EngineLimits, Run
from batchpolicy.policies.fcfs import FCFS
from batchpolicy.policy import Step
from batchpolicy.profiles import load_profile
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.statistics import Comparison, compare
from batchpolicy_tuning.workloads.draws import generator, lengths, poisson_arrivals

PROFILE, SEATS, STEP_TOKENS, KV_BLOCKS = "h100-llama-3.1-8b", 256, 2048, 1500
"""The pool holds 24,000 tokens, some 18 of the workload's requests at their ends."""
SEEDS, REQUESTS, RATE = 10, 250, 7.0
PROMPT = {"median": 700, "sigma": 1.0, "low": 16, "high": 6000}
OUTPUT = {"median": 200, "sigma": 0.9, "low": 4, "high": 2000}
CEILING = 2048
HALVED = 0.5
_THREAD = "https://github.com/vllm-project/vllm/issues/54644"


class LatestGoes(FCFS):
    """First come, first served; the latest arrival is the first victim, as in engines."""

    @override
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray:
        return self.benefit(running, step)


class Arm(NamedTuple):
    """One way to serve the workloads."""

    name: str
    config: PolicyConfig | None


def _fcfs(policy: str, *, look_ahead: bool) -> PolicyConfig:
    return PolicyConfig(
        policy=PolicySpec(name=policy),
        preempt="class",
        # As engines do it: nobody passes a request whose KV does not fit.
        bounds=Bounds(max_bypass_s=0.0),
        memory=Memory(look_ahead=look_ahead),
    )


_LATEST = f"{LatestGoes.__module__}:{LatestGoes.__name__}"
STOCK, LATEST_NOW, LEAST_NOW, LATEST_AHEAD, LEAST_AHEAD, DEFAULT = ARMS = (
    Arm("the engine's own fcfs", None),
    Arm("latest goes", _fcfs(_LATEST, look_ahead=False)),
    Arm("least loss goes", _fcfs("fcfs", look_ahead=False)),
    Arm("latest goes, look-ahead", _fcfs(_LATEST, look_ahead=True)),
    Arm("least loss goes, look-ahead", _fcfs("fcfs", look_ahead=True)),
    Arm("benefit as it comes", PolicyConfig(policy=PolicySpec(name="benefit"))),
)
PAIRS = (
    (LATEST_NOW, LEAST_NOW),
    (LATEST_AHEAD, LEAST_AHEAD),
    (STOCK, LEAST_AHEAD),
    (STOCK, DEFAULT),
)
"""What is held against what: the baseline first."""


class _Metric(NamedTuple):
    key: str
    label: str
    unit: str
    higher_is_better: bool = False


_METRICS = (
    _Metric("recompute", "recomputed", "%"),
    _Metric("preempted", "requests preempted", "%"),
    _Metric("most", "most of one", ""),
    _Metric("ttft", "TTFT", " s"),
    _Metric("ttft.p99", "TTFT p99", " s"),
    _Metric("e2el", "E2E", " s"),
    _Metric("e2el.p99", "E2E p99", " s"),
    _Metric("throughput", "output tok/s", "", higher_is_better=True),
    _Metric("short", "E2E, short quarter", " s"),
    _Metric("long", "E2E, long quarter", " s"),
)
Values = Mapping[str, FloatArray]
"""By metric, one number for each workload."""
SLOWER = 0.1
"""Part of its time by which a request that pays is slower."""


@dataclass(frozen=True, slots=True)
class Served:
    """What an arm did: metrics, and the time of every request of all workloads."""

    values: Values
    e2el_s: FloatArray


class VictimChoice(Bench):
    """Recomputed tokens and latencies, by who goes when running requests need more KV."""

    summary: ClassVar[str] = "recomputed tokens by the choice of victims, under KV pressure"
    engine: ClassVar[str] = "vllm"

    def __init__(self) -> None:
        self._engine = self.engine

    @override
    def choose_engine(self, engine: str) -> None:
        self._engine = engine

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        engine = registry.engine(self._engine)
        seeds, requests = (2, 60) if quick else (SEEDS, REQUESTS)
        drawn = [workload(k, requests) for k in range(seeds)]
        served: dict[str, Served] = {}
        for arm in ARMS:
            progress(f"{arm.name}: {seeds} workloads on {engine.version}")
            runs = [_replay(engine, arm, one) for one in drawn]
            each = [values(run) for run in runs]
            served[arm.name] = Served(
                {key: np.array([one[key] for one in each]) for key, *_ in _METRICS},
                np.concatenate([e2el_s(run) for run in runs]),
            )
        return BenchReport(
            f"{engine.version}: whom to preempt when the KV cache runs out",
            [
                _halved("victims alone", served, LATEST_NOW, LEAST_NOW),
                _halved("victims, where admission looks ahead", served, LATEST_AHEAD, LEAST_AHEAD),
                _halved("victims and look-ahead against the engine", served, STOCK, LEAST_AHEAD),
                _halved("the default policy against the engine", served, STOCK, DEFAULT),
                *_no_slower(served),
            ],
            (
                f"{seeds} workloads of {requests} requests, the same for all: Poisson, {RATE:g} "
                f"a second; prompts and answers lognormal with medians of {PROMPT['median']} and "
                f"{OUTPUT['median']} tokens and sigmas of {PROMPT['sigma']:g} and "
                f"{OUTPUT['sigma']:g}; no predictions, no targets, one class. {KV_BLOCKS} KV "
                f"blocks of 16 tokens, {SEATS} seats, {STEP_TOKENS} tokens a step, no prefix "
                f"cache, profile {PROFILE}.",
                "Recomputed: tokens computed again after a preemption, in percent of all prompt "
                "and output tokens. Most of one: most preemptions of one request, the mean over "
                "the workloads. The quarters are those of prompt and answer together. Intervals "
                "are of 95%, of paired differences.",
                f"Published: 10 to 23% of all tokens are computed again in realistic serving, "
                f"and about half of that is the choice of victims ({_THREAD}).",
            ),
            [_table(served), _differences(served)],
        )


def workload(k: int, requests: int) -> Workload:
    """Workload number ``k``: lengths so mixed that victims differ; the same for equal ``k``."""
    rng = generator("victims", k, 0)
    columns = zip(
        poisson_arrivals(rng, requests, requests / RATE),
        _drawn(rng, requests, PROMPT),
        _drawn(rng, requests, OUTPUT),
        strict=True,
    )
    return Workload(
        f"victims-{k}",
        tuple(
            WorkloadRequest(
                id=f"r{i:04}",
                arrival_s=float(arrival_s),
                prompt_tokens=int(prompt),
                output_tokens=int(output),
                max_tokens=CEILING,
            )
            for i, (arrival_s, prompt, output) in enumerate(columns)
        ),
    )


def _drawn(rng: np.random.Generator, n: int, size: Mapping[str, float]) -> Sequence[int]:
    found = lengths(
        rng,
        n,
        median=size["median"],
        sigma=size["sigma"],
        low=int(size["low"]),
        high=int(size["high"]),
    )
    return [int(tokens) for tokens in found]


def _replay(engine: Engine, arm: Arm, drawn: Workload) -> Run:
    limits = EngineLimits(
        max_num_seqs=SEATS, max_num_batched_tokens=STEP_TOKENS, kv_blocks=KV_BLOCKS
    )
    return engine.replay(drawn, arm.config, limits, load_profile(PROFILE).cost)


def e2el_s(run: Run) -> FloatArray:
    """Time from arrival to end of each request."""
    arrival_s = np.array([r.arrival_s for r in run.workload.requests])
    taken_s: FloatArray = run.finished_s - arrival_s
    return taken_s


def values(run: Run) -> Mapping[str, float]:
    """The metrics of a run in which all requests finish."""
    requests = run.workload.requests
    arrival_s = np.array([r.arrival_s for r in requests])
    tokens = np.array([r.prompt_tokens + r.output_tokens for r in requests])
    ttft_s, whole_s = run.first_token_s - arrival_s, e2el_s(run)
    low, high = np.percentile(tokens, (25, 75))
    return {
        "recompute": 100.0 * float(run.recomputed_tokens.sum() / tokens.sum()),
        "preempted": 100.0 * float((run.preemptions > 0).mean()),
        "most": float(run.preemptions.max()),
        "ttft": float(ttft_s.mean()),
        "ttft.p99": float(np.percentile(ttft_s, 99)),
        "e2el": float(whole_s.mean()),
        "e2el.p99": float(np.percentile(whole_s, 99)),
        "throughput": float(run.output_tokens.sum() / (run.end_s - arrival_s[0])),
        "short": float(whole_s[tokens <= low].mean()),
        "long": float(whole_s[tokens >= high].mean()),
    }


def _compared(
    served: Mapping[str, Served], baseline: Arm, arm: Arm, metric: _Metric
) -> Comparison:
    return compare(
        served[baseline.name].values[metric.key].tolist(),
        served[arm.name].values[metric.key].tolist(),
        higher_is_better=metric.higher_is_better,
    )


def _halved(what: str, served: Mapping[str, Served], baseline: Arm, arm: Arm) -> Measurement:
    found = _compared(served, baseline, arm, _METRICS[0])
    ratio = found.policy / found.baseline if found.baseline else 1.0
    low, high = 1.0 - found.relative_high, 1.0 - found.relative_low
    return Measurement(
        what,
        f"{found.policy:.1f}% recomputed against {found.baseline:.1f}%: {ratio:.2f}x "
        f"({low:.2f} to {high:.2f})",
        f"<= {HALVED}x",
        ratio <= HALVED,
        f"{arm.name}, against {baseline.name}.",
    )


def _no_slower(served: Mapping[str, Served]) -> list[Measurement]:
    """TTFT under the same arms as recomputation, which would be cheap to buy with it."""
    metric = next(one for one in _METRICS if one.key == "ttft")
    found: list[Measurement] = []
    for baseline, arm in PAIRS:
        one = _compared(served, baseline, arm, metric)
        found.append(
            Measurement(
                f"mean TTFT, {arm.name} against {baseline.name}",
                f"{one.policy:.2f} s against {one.baseline:.2f} s {_interval(one, metric)}",
                "no higher",
                one.policy <= one.baseline * 1.01,
            )
        )
    return found


def _interval(found: Comparison, metric: _Metric) -> str:
    """The change and its interval, as the metric goes: a positive one is more of it."""
    sign = 1.0 if metric.higher_is_better else -1.0
    ends = sorted(sign * 100.0 * end + 0.0 for end in (found.relative_low, found.relative_high))
    if not np.isfinite(ends).all():
        return f"{sign * found.improvement:+.2f}{metric.unit}"
    change = 100.0 * (found.policy / found.baseline - 1.0)
    return f"{change:+.0f}% ({ends[0]:+.0f} to {ends[1]:+.0f})"


def _table(served: Mapping[str, Served]) -> ResultTable:
    return ResultTable(
        "Means over the workloads",
        ("who goes", *(metric.label for metric in _METRICS)),
        [
            (
                arm.name,
                *(
                    f"{served[arm.name].values[key].mean():.4g}{unit}"
                    for key, _, unit, _ in _METRICS
                ),
            )
            for arm in ARMS
        ],
        "Without look-ahead a request starts as soon as its prompt fits, and what a victim "
        "frees beyond the need is taken by the next one, whose answer then needs more.",
    )


def _differences(served: Mapping[str, Served]) -> ResultTable:
    rows = [
        (
            f"{arm.name} against {baseline.name}",
            *(_interval(_compared(served, baseline, arm, metric), metric) for metric in _METRICS),
            *_who_pays(served[baseline.name].e2el_s, served[arm.name].e2el_s),
        )
        for baseline, arm in PAIRS
    ]
    return ResultTable(
        "Changes, who pays included",
        ("", *(metric.label for metric in _METRICS), f"slower by over {SLOWER:.0%}", "the worst"),
        rows,
        "Less is better, but for throughput. The last two columns are of single requests: how "
        "many take longer by more than that, how much longer these take on average, and the "
        "one that loses most.",
    )


def _who_pays(baseline_s: FloatArray, arm_s: FloatArray) -> tuple[str, str]:
    more_s = arm_s - baseline_s
    slower = more_s > SLOWER * baseline_s
    mean_s = float(more_s[slower].mean()) if slower.any() else 0.0
    return f"{slower.mean():.0%}, by {mean_s:.1f} s", f"+{max(float(more_s.max()), 0.0):.1f} s"
