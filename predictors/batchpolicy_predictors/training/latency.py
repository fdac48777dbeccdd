"""What it costs to predict, and to hear of an answer."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from batchpolicy.predictor import ENGINE_IDS, LEVELS, Arrivals, Predictor
from batchpolicy_predictors import features
from batchpolicy_predictors.model import Ensemble, Model
from batchpolicy_predictors.model_file import RESIDUALS, write_model
from batchpolicy_predictors.samples import guessed
from batchpolicy_predictors.training.fit import PLACES, SPREADS
from batchpolicy_predictors.trees import LEAVES, Trees
from batchpolicy_predictors.weighing import SHARES

PROMPT_TOKENS, TENANTS = 600, 40


def largest_model(path: Path) -> None:
    """Write a model as large as training makes one, of random trees."""
    rng = np.random.default_rng(1)

    def trees(count: int, start: float) -> Trees:
        feature = rng.integers(0, len(features.NAMES), (count, LEAVES)).astype(np.int32)
        threshold = rng.normal(size=(count, LEAVES)).astype(np.float32)
        feature[:, -1], threshold[:, -1] = 0, np.inf
        return Trees(start, feature, threshold, rng.normal(0.0, 0.02, (count, LEAVES)))

    residuals = np.linspace(-2.0, 2.0, RESIDUALS)
    losses = np.ones((len(SHARES), len(LEVELS)))
    one, other = (
        Ensemble(trees(max(PLACES), 5.0), 1.0, trees(max(SPREADS), 0.5), 0.5, residuals, losses)
        for _ in range(2)
    )
    card = {"tokens": {"id_space": ENGINE_IDS}}
    weights = rng.normal(0.0, 0.1, features.BUCKETS).astype(np.float32)
    groups = np.zeros(0, dtype=np.uint32)
    write_model(Model(card, one, other, weights, guessed(300.0), True, groups), path)


def batch(rows: int, seed: int, *, truth: bool = False) -> Arrivals:
    """Requests with all that can be known of them; ids are lists, as engines have them."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(0, 100_000, (rows, PROMPT_TOKENS))
    prompts[:, :200] = prompts[0, :200]
    return Arrivals(
        [f"{seed}-{i}" for i in range(rows)],
        np.full(rows, PROMPT_TOKENS),
        np.full(rows, 4096),
        [f"tenant {i}" for i in rng.integers(0, TENANTS, rows).tolist()],
        rng.integers(1, 2000, rows) if truth else None,
        prompts.tolist(),
        temperature=np.full(rows, 0.7),
        turn=rng.integers(0, 5, rows),
        hour=np.full(rows, 13.5),
    )


def cost_us(
    call: Callable[[Arrivals], object], batches: list[Arrivals], calls: int, rounds: int
) -> tuple[float, float]:
    """Median and 99th percentile of the microseconds of this thread that a call takes.

    Each is the median of so many rounds, in which all calls count.
    """
    for one in batches[:3]:
        call(one)
    found: list[tuple[float, float]] = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            spent = sorted(_time_us(call, batches[k % len(batches)]) for k in range(calls))
            found.append((percentile(spent, 0.5), percentile(spent, 0.99)))
    finally:
        gc.enable()
    middle, high = (statistics.median(part) for part in zip(*found, strict=True))
    return middle, high


def _time_us(call: Callable[[Arrivals], object], batch: Arrivals) -> float:
    started = time.thread_time_ns()
    call(batch)
    return (time.thread_time_ns() - started) / 1000.0


def used(predictor: Predictor, *, truth: bool) -> None:
    """Let a predictor see a thousand answers, so that it has all of its state."""
    rng = np.random.default_rng(3)
    for k in range(10):
        seen = batch(100, 100 + k, truth=truth)
        predictor.observe(seen, rng.integers(1, 2000, 100))


def percentile(ascending: list[float], part: float) -> float:
    """The value that so large a part does not exceed."""
    return ascending[min(len(ascending) - 1, int(part * len(ascending)))]
