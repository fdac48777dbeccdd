"""KV use against evictions on Past-Future's distributions: how far ahead admission can see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.config import Bounds, Memory, PolicyConfig, PolicySpec, PredictorSpec
from batchpolicy.engine import Engine, EngineLimits, StepRecord
from batchpolicy.requests import FloatArray
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.past_future import DISTRIBUTIONS, PRESS, Lengths
from batchpolicy_tuning.statistics import CONFIDENCE
from batchpolicy_tuning.turned_signs import mean_interval

SCALE = 16
"""All lengths and the KV are divided by it: as many requests run, in as many steps less."""
KV_TOKENS, REQUESTS, SEEDS = 120_000, 2_000, 5
STEP_S = 0.02
RATES = (0.005, 0.01, 0.03, 0.1)
NOISY_RATES = (0.005, 0.02)
LOG_SIGMA = 0.3
EVICTED = 0.01


class Way(NamedTuple):
    """One way to admit."""

    label: str
    memory: Memory | None
    """None for the engine's own order."""
    predictor: PredictorSpec | None = None


class Outcome(NamedTuple):
    """What one replay came to."""

    use: float
    """Used part of the KV blocks, averaged over time, from the first step to the last."""
    evicted: float
    """Part of the requests that were evicted at least once."""
    evictions: float
    """Evictions in all, by request."""
    steps: float
    recomputed: float
    """Tokens computed again, as a part of all prompt and output tokens."""


class MemoryFrontier(Bench):
    """The frontier of KV use and evictions, without, with noisy and with perfect predictions."""

    summary: ClassVar[str] = "KV use against evictions on Past-Future's distributions"
    engine: ClassVar[str] = "light"

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        engine = registry.engine(self.engine)
        seeds, requests = (2, 200) if quick else (SEEDS, REQUESTS)
        measured: list[Measurement] = []
        tables: list[ResultTable] = []
        for lengths in DISTRIBUTIONS:
            found: dict[str, list[Outcome]] = {}
            for way in ways():
                for seed in range(seeds):
                    progress(f"{lengths.name[:2]}, {way.label}: {seed + 1} of {seeds}")
                    run = served(engine, lengths, way, requests, seed)
                    found.setdefault(way.label, []).append(run)
            measured += _figures(lengths, found)
            tables.append(_table(lengths, found))
        return BenchReport(
            f"{engine.version}: KV use against evictions",
            measured,
            (
                f"{requests:,} requests, all there at the start, in order of arrival, nobody "
                f"passed; {KV_TOKENS:,} KV tokens, {seeds} seeds. All lengths, the KV and "
                f"memory.first_guess_tokens are divided by {SCALE}, so that as many requests "
                "run at once and a step stands for as many tokens of each.",
                "Use: used blocks over all blocks, weighted by time, from the first step to the "
                "last, filling and draining included. Evicted: requests that lost their KV at "
                "least once, the first batch, of which nothing was known, included. Evicted "
                "work is computed again and takes its time.",
                "Ways to admit: stock is the engine's own order, which asks for what fits now; "
                "max-tokens takes the ceilings for the lengths; then memory.max_preemption_rate "
                f"at the percentage given, without a predictor or with noisy-oracle at log-sigma "
                f"{LOG_SIGMA:g}; oracle knows all lengths.",
                "Past-Future's own figures are those of its artifact's simulator, in which "
                "evicted work is not done again; they are no run of ours beside these.",
                f"Use at {EVICTED:.0%} evicted, and evictions at a use, are read off the line "
                "through the nearest two settings, evictions in logarithms.",
            ),
            tables,
        )


def ways() -> list[Way]:
    """The ways that are compared, baselines first."""
    guess = 4096 // SCALE

    def kept(rate: float) -> Memory:
        return Memory(max_preemption_rate=rate, first_guess_tokens=guess)

    noisy = PredictorSpec(name="noisy-oracle", params={"log_sigma": LOG_SIGMA})
    known = PredictorSpec(name="oracle")
    return [
        Way("stock", None),
        Way("max-tokens", kept(EVICTED), PredictorSpec(name="max-tokens")),
        *(Way(_label("no predictor", rate), kept(rate)) for rate in RATES),
        *(Way(_label("noisy-oracle", rate), kept(rate), noisy) for rate in NOISY_RATES),
        Way("oracle", kept(EVICTED), known),
    ]


def _label(name: str, rate: float) -> str:
    return f"{name}, {100.0 * rate:g}%"


def workload_of(lengths: Lengths, requests: int, seed: int) -> Workload:
    """Requests that are all there from the start; their prompts and lengths follow the seed."""
    rng = np.random.default_rng([seed, *lengths.prompt, *lengths.output])
    prompts = rng.integers(lengths.prompt[0], lengths.prompt[1], requests, endpoint=True)
    outputs = rng.integers(lengths.output[0], lengths.output[1], requests, endpoint=True)
    return Workload(
        lengths.name,
        tuple(
            WorkloadRequest(
                id=f"{seed}-{i}",
                arrival_s=0.0,
                prompt_tokens=max(int(prompt) // SCALE, 1),
                output_tokens=max(int(output) // SCALE, 1),
                max_tokens=lengths.max_tokens // SCALE,
            )
            for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ),
    )


def served(engine: Engine, lengths: Lengths, way: Way, requests: int, seed: int) -> Outcome:
    """One replay."""
    workload = workload_of(lengths, requests, seed)
    blocks = KV_TOKENS // SCALE
    limits = EngineLimits(
        max_num_seqs=128,
        max_num_batched_tokens=8192 // SCALE,
        kv_blocks=blocks,
        kv_block_tokens=1,
    )
    config = None
    if way.memory is not None:
        config = PolicyConfig(
            policy=PolicySpec(name="fcfs"),
            preempt="never",
            bounds=Bounds(max_bypass_s=0.0),
            memory=way.memory,
            predictor=way.predictor,
        )
    used_s = total_s = 0.0

    def watch(step: StepRecord) -> None:
        nonlocal used_s, total_s
        used_s += (blocks - step.free_kv_blocks) * step.duration_s
        total_s += step.duration_s

    # Decoding as memory-bound as it gets: a step takes as long however many decode.
    run = engine.replay(workload, config, limits, FormulaCost(base_s=STEP_S), observer=watch)
    tokens = sum(r.prompt_tokens + r.output_tokens for r in workload.requests)
    return Outcome(
        used_s / (total_s * blocks),
        float((run.preemptions > 0).mean()),
        float(run.preemptions.sum()) / requests,
        float(run.steps),
        float(run.recomputed_tokens.sum()) / tokens,
    )


def at_evicted(points: Sequence[tuple[float, float]], evicted: float) -> float:
    """Use at this part evicted, on the line through the nearest ``(use, evicted)``."""
    return _on_line([(math.log(max(part, 1e-4)), use) for use, part in points], math.log(evicted))


def at_use(points: Sequence[tuple[float, float]], use: float) -> float:
    """Part evicted at this use, on the line through the nearest ``(use, evicted)``."""
    return math.exp(_on_line([(at, math.log(max(part, 1e-4))) for at, part in points], use))


def _on_line(points: list[tuple[float, float]], x: float) -> float:
    """Height at ``x`` between its neighbours, or beyond all of them in the same direction."""
    ordered = sorted(points)
    right = min(max(sum(at < x for at, _ in ordered), 1), len(ordered) - 1)
    (x0, y0), (x1, y1) = ordered[right - 1], ordered[right]
    return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _points(found: dict[str, list[Outcome]], name: str, seed: int) -> list[tuple[float, float]]:
    return [
        (runs[seed].use, runs[seed].evicted)
        for label, runs in found.items()
        if label.startswith(name)
    ]


def _figures(lengths: Lengths, found: dict[str, list[Outcome]]) -> list[Measurement]:
    seeds = range(len(found["oracle"]))
    name = lengths.name[:2]
    figures: list[Measurement] = []
    for way, points, why in (
        ("no predictor", 4.0, "the spread of what is to come of the running answers"),
        (
            "noisy-oracle",
            1.5,
            f"an error of sigma {LOG_SIGMA} tells of when the next answer ends, on which "
            "admission waits, little more than the earlier answers do",
        ),
    ):
        short = np.array(
            [
                100.0 * (found["oracle"][k].use - at_evicted(_points(found, way, k), EVICTED))
                for k in seeds
            ]
        )
        met = bool(np.mean(short) <= points)
        figures.append(
            Measurement(
                f"{name}, {way}: use below the oracle's at {EVICTED:.0%} evicted",
                f"{_with_interval(short, 2)} points",
                f"<= {points:g} points",
                met,
                "" if met else f"limited by {why}",
            )
        )
    past, best = (
        next(one for one in lengths.published if one[0] == way)
        for way in ("Past-Future", "theoretical optimum")
    )
    behind = best[1] - past[1]
    for what, uses in (
        (f"at its use of {past[1]:.2%}", [past[1]] * len(seeds)),
        (f"as far below the optimum, {100.0 * behind:.2f} points", _less(found, behind)),
    ):
        ratio = np.array(
            [at_use(_points(found, "no predictor", k), uses[k]) / past[2] for k in seeds]
        )
        met = bool(np.mean(ratio) <= 0.7)
        figures.append(
            Measurement(
                f"{name}, no predictor: evicted against Past-Future, {what}",
                f"{_with_interval(ratio, 2)}x its {past[2]:.2%} (published)",
                "<= 0.7x",
                met,
                "" if met else "both know the same earlier answers; its evicted work is free",
            )
        )
    return figures


def _less(found: dict[str, list[Outcome]], points: float) -> list[float]:
    """The oracle's use less this, by seed."""
    return [run.use - points for run in found["oracle"]]


def _table(lengths: Lengths, found: dict[str, list[Outcome]]) -> ResultTable:
    rows: list[list[str]] = []
    for label, runs in found.items():
        columns = np.array(runs).T
        rows.append(
            [
                label,
                _with_interval(100.0 * columns[0], 1),
                _with_interval(100.0 * columns[1], 2),
                f"{100.0 * columns[2].mean():.2f}",
                f"{SCALE * columns[3].mean():,.0f}",
                f"{100.0 * columns[4].mean():.2f}",
            ]
        )
    rows += [
        [f"published: {name}", f"{100.0 * use:.1f}", f"{100.0 * evicted:.1f}", "", "", ""]
        for name, use, evicted in lengths.published
    ]
    return ResultTable(
        lengths.name,
        ("admission", "use, %", "evicted, %", "evictions, %", "steps", "recomputed, %"),
        rows,
        f"Mean over seeds and interval of {CONFIDENCE:.0%}; evictions in % of the requests, "
        f"recomputed in % of all tokens, steps at full scale. Published: {PRESS}.",
    )


def _with_interval(values: FloatArray, digits: int) -> str:
    text = f"{np.mean(values):.{digits}f}"
    low, high = mean_interval(values, CONFIDENCE)
    if not math.isfinite(high):
        return text
    return f"{text} ({low:.{digits}f} to {high:.{digits}f})"
