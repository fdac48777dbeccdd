"""A policy against itself: how often a comparison shows what is not there, or misses what is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy import stats
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress
from batchpolicy.config import config_named
from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.profiles import load_profile
from batchpolicy.requests import FloatArray
from batchpolicy.workload import Workload
from batchpolicy_tuning.metrics import METRICS, Metric
from batchpolicy_tuning.prefix_cache import on
from batchpolicy_tuning.replay import Replay
from batchpolicy_tuning.saturation import Saturate, backlog
from batchpolicy_tuning.statistics import CONFIDENCE, LEVEL, changed_by, holm
from batchpolicy_tuning.turned_signs import p_negative
from batchpolicy_tuning.workloads.catalog import workload_named
from batchpolicy_tuning.workloads.source import arrival_rate

WORKLOAD, PROFILE = "chat-and-batch", "h100-llama-3.1-8b"
BASELINE, POLICY = "fcfs", "benefit"
LOAD, SEATS, REQUESTS = 0.9, 32, 400
REPLICATIONS, JITTERS = 30, 2
PAIRS = 20
REPETITIONS = 5_000
EFFECT, SPREAD = 0.9, 0.2
"""The known effect: so many times the value on average, and its sigma over replications."""
POINTS = -0.02
MEASURED = ("ttft.p50", "ttft.p99", "tpot.p99", "e2el.p99", "attainment", "jain", "throughput")
GATED = ("ttft.p50", "ttft.p99", "tpot.p99", "e2el.p99")
_EFFECT_GOAL = (0.94, 0.96)

Sampled = tuple[FloatArray, FloatArray]
"""Baseline and policy, shape ``(pairs, repetitions)``."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often an interval holds the truth, by ours and by Student's."""

    ours: float
    students: float


class AgainstItself(Bench):
    """False positives and coverage of comparisons resampled from stored runs.

    Each replication is served under one policy several times, the arrivals jittered
    anew each time as they are between live servers. A repetition draws 20 pairs, a
    replication and two of its runs each: the arms are equal, so what is shown is
    wrong. With one arm changed by a known effect, its interval should hold the effect.
    """

    summary: ClassVar[str] = "false positives and coverage of `ab` on runs of equal policies"

    def __init__(self) -> None:
        self._engine = "vllm"

    @override
    def choose_engine(self, engine: str) -> None:
        self._engine = engine

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        engine = registry.engine(self._engine)
        replications, repetitions = (10, 500) if quick else (REPLICATIONS, REPETITIONS)
        served = _serve(engine, replications, progress)
        found: list[Measurement] = []
        metrics = [metric for metric in METRICS if metric.key in MEASURED]
        for metric in metrics:
            progress(f"resampling {metric.label}, {repetitions:,} times")
            base, policy = served[BASELINE][metric.key], served[POLICY][metric.key]
            found += _of_metric(metric, base, policy[:, 0], repetitions)
        progress("resampling skewed and heavy-tailed distributions")
        found += [_of_tails(sigma, repetitions) for sigma in (0.5, 1.0, 1.5)]
        values = [served[BASELINE][key] for key in GATED]
        found.append(_of_gates(values, repetitions))
        found += [
            _of_equivalence(metric, served[BASELINE][metric.key], repetitions)
            for metric in metrics
            if metric.key in GATED
        ]
        error = 100.0 * (0.05 * 0.95 / repetitions) ** 0.5
        return BenchReport(
            f"{BASELINE} against itself: {repetitions:,} repetitions of {PAIRS} pairs",
            found,
            (
                f"{replications} replications of {WORKLOAD}, {REQUESTS} requests each, at load "
                f"{LOAD:g} on {SEATS} seats; {BASELINE} {JITTERS} times each and {POLICY} once, "
                f"on {engine.version}; every arrival moved by up to a mean gap, anew each time.",
                "In brackets: Student's t on the paired differences, on the same pairs.",
                f"Standard error of a figure of 5%: {error:.1f} points.",
            ),
        )


def jittered(workload: Workload, seed: Sequence[int]) -> Workload:
    """The requests with every arrival moved by up to one mean gap, either way."""
    rng = np.random.default_rng(seed)
    gap_s = workload.span_s / max(len(workload.requests) - 1, 1)
    moved = [
        replace(r, arrival_s=max(r.arrival_s + float(shift_s), 0.0))
        for r, shift_s in zip(
            workload.requests, rng.uniform(-gap_s, gap_s, len(workload.requests)), strict=True
        )
    ]
    return Workload(workload.name, tuple(sorted(moved, key=lambda r: r.arrival_s)))


def resampled(values: FloatArray, repetitions: int, rng: np.random.Generator) -> Sampled:
    """Pairs of equal arms: a replication with two of its runs each; ``values`` is their table."""
    rows = rng.integers(0, len(values), (PAIRS, repetitions))
    first = rng.integers(0, values.shape[1], rows.shape)
    other = (first + rng.integers(1, values.shape[1], rows.shape)) % values.shape[1]
    return values[rows, first], values[rows, other]


def holds(sampled: Sampled, truth: float, metric: Metric) -> Intervals:
    """How often the interval of ``ab`` holds the true change, and how often Student's does.

    The truth is the ratio of the means, or their difference where the metric counts in
    points. Student's interval is that of the mean difference from ``truth * baseline``.
    """
    baseline, policy = sampled
    if metric.in_points:
        beyond = off = policy - baseline - truth
    else:
        beyond = policy - truth * baseline
        off = policy - baseline - (truth - 1.0) * baseline.mean()
    # The interval holds what neither of its two tests rejects.
    ours = np.minimum(p_negative(beyond), p_negative(-beyond)) > (1.0 - CONFIDENCE) / 2.0
    error = off.std(axis=0, ddof=1) / len(off) ** 0.5
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2.0, len(off) - 1)) * error
    students = np.abs(off.mean(axis=0)) <= reach + 1e-12
    return Intervals(float(ours.mean()), float(students.mean()))


def _serve(
    engine: Engine, replications: int, progress: Progress
) -> Mapping[str, Mapping[str, FloatArray]]:
    """Metrics by policy, shape ``(replications, runs)``."""
    profile = load_profile(PROFILE)
    limits = on(
        engine,
        EngineLimits(
            max_num_seqs=SEATS,
            max_num_batched_tokens=2048,
            kv_blocks=profile.kv_tokens // 16,
            prefix_cache=True,
        ),
    )
    source = workload_named(WORKLOAD, pairs=replications, requests=REQUESTS, classes=None)
    drawn = [source.replication(k, 0) for k in range(replications)]
    progress(f"finding what fcfs sustains on {engine.version}")
    full = Saturate(backlog(drawn, SEATS), limits, profile.cost, 0)(engine)
    factor = arrival_rate(drawn) / (LOAD * full.requests_per_s)
    served: dict[str, Mapping[str, FloatArray]] = {}
    for policy, runs in ((BASELINE, JITTERS), (POLICY, 1)):
        config = config_named(policy)
        table: dict[str, list[list[float]]] = {key: [] for key in MEASURED}
        for k, workload in enumerate(drawn):
            progress(f"{policy}: replication {k + 1} of {replications}")
            values = [
                Replay(
                    f"{policy}, replication {k}",
                    config,
                    jittered(workload.stretched(factor), (k, run, len(served))),
                    limits,
                    profile.cost,
                    0,
                )(engine).measured.overall
                for run in range(runs)
            ]
            for key, rows in table.items():
                rows.append([one[key] for one in values])
        served[policy] = {key: np.array(rows) for key, rows in table.items()}
    return served


def _of_metric(
    metric: Metric, base: FloatArray, policy: FloatArray, repetitions: int
) -> list[Measurement]:
    rng = np.random.default_rng(1)
    name, none = metric.label, 0.0 if metric.in_points else 1.0
    equal = resampled(base, repetitions, rng)
    wrong = holds(equal, none, metric)
    differ = float((base[:, 0] != base[:, 1]).mean())
    why = ""
    if differ < 1.0:
        why = f"runs of {1.0 - differ:.0%} of replications are equal"
    found = [
        _judged(
            f"{name}: false positives",
            Intervals(1.0 - wrong.ours, 1.0 - wrong.students),
            (0.04, 0.06),
            why,
        )
    ]
    if metric.in_points:
        effects = POINTS * rng.exponential(1.0, equal[1].shape)
        changed, truth, told = equal[1] + effects, POINTS, f"{-100 * POINTS:g} points less"
    else:
        effects = rng.lognormal(np.log(EFFECT) - SPREAD**2 / 2.0, SPREAD, equal[1].shape)
        changed, truth, told = equal[1] * effects, EFFECT, f"{1.0 - EFFECT:.0%} less"
    found.append(
        _judged(
            f"{name}: coverage of {told}",
            holds((equal[0], changed), truth, metric),
            _EFFECT_GOAL,
            "the effect is drawn from an exponential, which is skewed" if metric.in_points else "",
        )
    )
    # The true effect of a policy on these replications is known, since they are all there are.
    rows = rng.integers(0, len(base), equal[0].shape)
    arms = base[rows, rng.integers(0, base.shape[1], rows.shape)], policy[rows]
    change = float(policy.mean() - base.mean())
    truth = change if metric.in_points else float(policy.mean() / base.mean())
    gains = policy - (base.mean(axis=1) if metric.in_points else truth * base.mean(axis=1))
    skewness = float(stats.skew(gains))
    found.append(
        _judged(
            f"{name}: coverage of {BASELINE} to {POLICY}",
            holds(arms, truth, metric),
            _EFFECT_GOAL,
            f"the effect differs over replications with a skewness of {skewness:.1f}",
        )
    )
    return found


def _of_tails(sigma: float, repetitions: int) -> Measurement:
    """Pairs whose replications spread as a lognormal, and the arms around them as Student's t3."""
    rng = np.random.default_rng(2)
    shape = (PAIRS, repetitions)
    common = np.exp(rng.normal(0.0, sigma, shape))

    def arm() -> FloatArray:
        around = 1.0 + 0.1 * np.clip(rng.standard_t(3, shape), -9.0, 9.0)
        return common * around

    metric = next(metric for metric in METRICS if metric.key == "ttft.p99")
    return _judged(
        f"lognormal replications, sigma {sigma:g}: coverage of {1.0 - EFFECT:.0%} less",
        holds((arm(), EFFECT * arm()), EFFECT, metric),
        _EFFECT_GOAL,
        "",
    )


def _of_gates(values: Sequence[FloatArray], repetitions: int) -> Measurement:
    """How often any of several gates at +0% passes between equal arms, where none should."""
    rng = np.random.default_rng(3)
    rows = rng.integers(0, len(values[0]), (PAIRS, repetitions))
    first = rng.integers(0, 2, rows.shape)
    p = np.array([p_negative(v[rows, 1 - first] - v[rows, first]) for v in values])
    plain = float((p.min(axis=0) <= LEVEL).mean())
    adjusted = [min(holm(list(of_one))) for of_one in p.T.tolist()]
    found = float(np.mean(np.array(adjusted) <= LEVEL))
    return _at_most(
        f"{len(values)} gates at +0% between equal arms: any passes",
        f"{found:.1%} (without Holm {plain:.1%})",
        found,
    )


def _of_equivalence(metric: Metric, base: FloatArray, repetitions: int) -> Measurement:
    """How often arms that differ by just the margin are shown to be equivalent within it."""
    margin = 0.05
    baseline, policy = resampled(base, repetitions, np.random.default_rng(4))
    difference = (1.0 + margin) * policy - baseline

    def shown(change: float, sign: float) -> FloatArray:
        return p_negative(sign * changed_by(baseline, difference, change, metric.in_points))

    found = float((np.maximum(shown(margin, 1.0), shown(-margin, -1.0)) <= LEVEL).mean())
    return _at_most(
        f"{metric.label}: equivalent within {margin:.0%} at a change of {margin:.0%}",
        f"{found:.1%}",
        found,
    )


def _judged(what: str, held: Intervals, goal: tuple[float, float], why: str) -> Measurement:
    met = goal[0] <= round(held.ours, 3) <= goal[1]
    return Measurement(
        what,
        f"{held.ours:.1%} (Student's {held.students:.1%})",
        f"{goal[0]:.0%} to {goal[1]:.0%}",
        met,
        "" if met else why,
    )


def _at_most(what: str, value: str, found: float) -> Measurement:
    # A repetition more or less decides nothing: half a point is over two standard errors.
    return Measurement(what, value, f"<= {LEVEL:.0%}, +0.5 for chance", found <= LEVEL + 0.005)
