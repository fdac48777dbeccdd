"""``batchpolicy bench predicting``: with and without a predictor, in turns."""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.config import PolicyConfig, PredictorSpec, config_named, load_config
from batchpolicy.errors import ConfigError

from batchpolicy_vllm import quiet as quiet  # isort: skip - before vLLM is imported
from batchpolicy_vllm.predicting.sides import (
    FORWARD_S,
    PROMPT_TOKENS,
    SEATS,
    WAITING,
    Side,
    StepTime,
)

STEPS, BLOCK = 300, 30
"""Steps of each side; where two are in flight so many in a row, before another has its turn."""
MOST = 0.03
_REST_S = 0.004
"""After a step, in which a predictor ends what it does and the other sides begin afresh."""
_CHURN = (0, 1, 8)
"""Answers that end, and requests that come, in each step."""
_NONE, _PLAIN = "none", "constant"
_COLUMNS = (
    "predictor", "in and out a step", "median", "undisturbed", "over none", "undisturbed",
    "over constant", "undisturbed",
)  # fmt: skip
_LEAST_PAIRS = 16
_Times = Mapping[str, Sequence[StepTime]]
"""By predictor."""


class PredictingBench(Bench):
    """Wall time of a step with a predictor on its thread, over that without one.

    ``constant`` has nothing to work out: what it costs is what predictions cost the plan, and
    what others cost beyond it is their thread.
    """

    summary: ClassVar[str] = "time of a vLLM step with a predictor on its thread against none"
    engine: ClassVar[str] = "vllm"

    def __init__(self) -> None:
        self._more: dict[str, PredictorSpec] = {}

    @override
    def choose_workload(self, workload: str) -> None:
        spec = load_config(workload).predictor
        if spec is None:
            raise ConfigError(f"{workload} has no predictor, expected one that is to be measured.")
        self._more = {spec.name: spec}

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        specs: dict[str, PredictorSpec | None] = {
            _NONE: None,
            _PLAIN: PredictorSpec(name="constant", params={"output_tokens": 300}),
            "tenant-history": PredictorSpec(name="tenant-history"),
            **self._more,
        }
        base = config_named("benefit")
        configs = {n: base.model_copy(update={"predictor": spec}) for n, spec in specs.items()}
        steps = 20 if quick else STEPS
        found: list[Measurement] = []
        one_by_one: list[tuple[str, ...]] = []
        with _sides(configs, progress) as sides:
            for churn in _CHURN:
                progress(f"{churn} in and out a step")
                took = _in_turns(sides, churn, steps)
                one_by_one += [_row(name, churn, took) for name in specs]
                found += [
                    _against(name, churn, took) for name in specs if name not in (_NONE, _PLAIN)
                ]
        overlapped: list[tuple[str, ...]] = []
        with _sides(configs, progress, asynchronous=True) as sides:
            for churn in _CHURN:
                progress(f"{churn} in and out a step, two in flight")
                apart = _in_blocks(sides, churn, steps)
                overlapped += [_apart_row(name, churn, apart[name]) for name in specs]
                found += [_apart(name, churn, apart) for name in specs if name != _NONE]
        return BenchReport(
            "vLLM's scheduler with a predictor on its thread, against none",
            found,
            _notes(),
            (
                ResultTable("Microseconds of a step, one at a time", _COLUMNS, one_by_one),
                ResultTable(
                    "Milliseconds from one step's end to the next one's, two in flight",
                    ("predictor", "in and out a step", "mean", "p99", "late"),
                    overlapped,
                    f"The model takes {1e3 * FORWARD_S:g} ms. Late: steps that the device had to "
                    "wait for.",
                ),
            ),
        )


def _notes() -> Sequence[str]:
    return (
        f"Policy benefit, {SEATS} running and {WAITING} waiting, prompts of {PROMPT_TOKENS} "
        f"tokens; {STEPS} steps of each side, in turns in one process.",
        "One at a time: each begins with the predictors at rest and the caches cold. Wall time of "
        "add_request(), schedule() and update_from_output(); the model is a wait of "
        f"{1e3 * FORWARD_S:g} ms, taken off, so that its end comes late where a predictor "
        "holds the GIL. Intervals are 95%, of medians of pairs; undisturbed are those in "
        "which the system took the scheduler's core away in neither step. That leaves out "
        "part of the cost too, since a predictor's thread is among those that take it; "
        "verdicts are of all.",
        "Two in flight, as vLLM has it where asynchronous scheduling is on, which on GPUs is "
        f"the default: {BLOCK} steps of a side in a row. A step is planned and results are taken "
        "while the device computes another.",
    )


@contextmanager
def _sides(
    configs: Mapping[str, PolicyConfig], progress: Progress, *, asynchronous: bool = False
) -> Generator[Mapping[str, Side]]:
    progress(f"{len(configs)} schedulers with {SEATS} running and {WAITING} waiting each")
    sides = {name: Side(one, asynchronous=asynchronous) for name, one in configs.items()}
    gc.collect()
    gc.disable()
    try:
        yield sides
    finally:
        gc.enable()
        for side in sides.values():
            side.close()


def _in_turns(sides: Mapping[str, Side], churn: int, steps: int) -> _Times:
    took: dict[str, list[StepTime]] = {name: [] for name in sides}
    names = deque(sides)
    for _ in range(steps):
        # Nobody always comes after the same one.
        names.rotate(1)
        for name in names:
            took[name].append(sides[name].step(churn))
            time.sleep(_REST_S)
    return took


def _in_blocks(sides: Mapping[str, Side], churn: int, steps: int) -> Mapping[str, Sequence[float]]:
    apart_s: dict[str, list[float]] = {name: [] for name in sides}
    names = deque(sides)
    for _ in range(max(steps // BLOCK, 1)):
        names.rotate(1)
        for name in names:
            apart_s[name] += sides[name].overlapped(churn, min(steps, BLOCK))
            time.sleep(_REST_S)
    return apart_s


def _row(name: str, churn: int, took: _Times) -> tuple[str, ...]:
    spent = np.array([step.seconds for step in took[name]])
    alone = np.array([not step.disturbed for step in took[name]])
    median = f"{1e6 * np.median(spent):,.0f}"
    kept = f"{1e6 * np.median(spent[alone]):,.0f} ({alone.mean():.0%})" if alone.any() else "-"
    gaps = [
        "" if name in without else _gap(took, name, other, alone=alone_only)[0]
        for other, without in ((_NONE, (_NONE,)), (_PLAIN, (_NONE, _PLAIN)))
        for alone_only in (False, True)
    ]
    return (name, str(churn), median, kept, *gaps)


def _gap(took: _Times, name: str, other: str, *, alone: bool) -> tuple[str, float, float]:
    """Median of the pairs, in microseconds, as text and with its interval's half.

    ``alone`` leaves out pairs in which the system gave the scheduler's core to others.
    """
    pairs = np.array(
        [
            1e6 * (ours.seconds - theirs.seconds)
            for ours, theirs in zip(took[name], took[other], strict=True)
            if not (alone and (ours.disturbed or theirs.disturbed))
        ]
    )
    if len(pairs) < _LEAST_PAIRS:
        return f"{len(pairs)} pairs", math.nan, math.nan
    quarter, middle, three = np.quantile(pairs, [0.25, 0.5, 0.75]).tolist()
    # The error of a median, by the spread between the quarters.
    half = 1.96 * 1.2533 * (three - quarter) / 1.349 / math.sqrt(len(pairs))
    return f"{middle:+.0f} ± {half:.0f}", middle, half


def _against(name: str, churn: int, took: _Times) -> Measurement:
    """What its thread costs: beyond predictions that nobody has to work out."""
    text, middle, half = _gap(took, name, _PLAIN, alone=False)
    plain = 1e6 * float(np.median([step.seconds for step in took[_PLAIN]]))
    most = MOST * plain
    met = True if middle + half <= most else False if middle - half > most else None
    return Measurement(
        f"{name}, {churn} in and out a step: its thread",
        f"{text} us of {plain:,.0f} us",
        f"<= {MOST:.0%}",
        met,
        "neither shown nor ruled out" if met is None else "",
    )


def _apart(name: str, churn: int, apart_s: Mapping[str, Sequence[float]]) -> Measurement:
    ours, none = (1e3 * float(np.mean(apart_s[one])) for one in (name, _NONE))
    return Measurement(
        f"{name}, {churn} in and out a step, two in flight: step time over none",
        f"{ours / none:.4f}x ({none:.3f} to {ours:.3f} ms)",
        f"<= {1.0 + MOST:g}x",
        ours / none <= 1.0 + MOST,
    )


def _apart_row(name: str, churn: int, apart_s: Sequence[float]) -> tuple[str, ...]:
    apart_ms = 1e3 * np.array(apart_s)
    late = float((apart_ms > 1e3 * FORWARD_S + 1e-3).mean())
    mean, high = float(apart_ms.mean()), float(np.quantile(apart_ms, 0.99))
    return (name, str(churn), f"{mean:.3f}", f"{high:.3f}", f"{late:.1%}")
