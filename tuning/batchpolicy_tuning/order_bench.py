"""What it takes to put a long queue in order, under every installed policy."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.errors import BatchPolicyError
from batchpolicy.policies.benefit import Benefit
from batchpolicy.policy import Policy, Step
from batchpolicy.runner.ranked import Ranked
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step

QUEUES = (1_000, 10_000)
GOALS_US = {1_000: 50.0, 10_000: 150.0}
"""Of three terms, by the length of the queue."""
THREE_TERMS = "benefit: priority, urgency, fairness"
SEATS = 4
_WINDOW = 20
_TIMES = 400


class OrderBench(Bench):
    """Time to rank a queue and to find the best twenty."""

    summary: ClassVar[str] = "time to put 1,000 and 10,000 waiting requests in order"

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        policies = dict(_policies())
        times = 20 if quick else _TIMES
        found_us: dict[str, list[float]] = {name: [] for name in policies}
        alone_us: list[float] = []
        for n in QUEUES:
            progress(f"{n:,} waiting, {len(policies)} orders")
            for name, medians in _median_us(policies, n, times).items():
                found_us[name].append(medians)
            alone = {THREE_TERMS: dict(_policies())[THREE_TERMS]}
            alone_us += _median_us(alone, n, times).values()
        return BenchReport(
            "Order of a queue",
            [
                _measured(f"{THREE_TERMS}, {n:,} waiting, {how}", us, GOALS_US[n])
                for how, times_us in (
                    ("in turn with the others", found_us[THREE_TERMS]),
                    ("by itself", alone_us),
                )
                for n, us in zip(QUEUES, times_us, strict=True)
            ],
            (
                "Requests of 20 tenants in 3 classes, two thirds with a TTFT target, none with a "
                f"prediction; rank and the best {_WINDOW}; medians of {times}, called again and "
                "again: what others leave in the caches counts in turn and not by itself, and an "
                "engine's steps in between make it up to three times as much (bench overhead).",
                "Microseconds are this machine's.",
            ),
            [
                ResultTable(
                    "Every installed order",
                    ("order", *(f"{n:,} waiting" for n in QUEUES)),
                    [
                        (name, *(f"{us:.0f} us" for us in medians))
                        for name, medians in found_us.items()
                    ],
                )
            ],
        )


def _measured(what: str, us: float, goal_us: float) -> Measurement:
    return Measurement(what, f"{us:.0f} us", f"<= {goal_us:.0f} us", us <= goal_us)


def _policies() -> Iterator[tuple[str, Policy]]:
    off = {"shortness": {"weight": 0}, "ageing": {"weight": 0}, "corridor_tokens": None}
    yield THREE_TERMS, Benefit.model_validate(off)
    yield "... and shortness", Benefit.model_validate(off | {"shortness": {}})
    yield "... and ageing", Benefit.model_validate({"corridor_tokens": None})
    yield "... and the corridor: the default", Benefit()
    yield "... and prices", Benefit.model_validate({"prices": {}})
    for name in registry.names("batchpolicy.policies"):
        try:
            cls = registry.policy_class(name)
            if cls is not Benefit:
                yield name, cls()
        except BatchPolicyError as fault:
            # Somebody's plug-in: their bench tells them, this one measures the others.
            raise BatchPolicyError(f"{name}: {fault}") from fault


def _median_us(policies: Mapping[str, Policy], n: int, times: int) -> dict[str, float]:
    table, step = _queue(n)
    slots = step.waiting.slot
    for policy in policies.values():
        policy.on_arrived(step.waiting, step)
    spent_us: dict[str, list[float]] = {name: [] for name in policies}
    gc.disable()
    try:
        for _ in range(times):
            for name, policy in policies.items():
                waiting = table.rows(slots, never_started=True)
                now = replace(step, waiting=waiting)
                started = time.thread_time()
                ranking = policy.rank(waiting, now)
                Ranked(waiting, ranking, ranking.admissible).best(None, _WINDOW)
                spent_us[name].append(1e6 * (time.thread_time() - started))
    finally:
        gc.enable()
    return {name: statistics.median(each) for name, each in spent_us.items()}


def _queue(n: int) -> tuple[RequestTable, Step]:
    table, rng = RequestTable(), np.random.default_rng(1)
    for i in range(n):
        table.add(
            f"r{i}",
            arrival_s=0.01 * i,
            priority=int(rng.integers(0, 3)),
            tenant=int(rng.integers(0, 20)),
            prompt_tokens=int(rng.integers(10, 3000)),
            max_tokens=500,
            ttft_slo_s=float(rng.choice([1.0, 5.0, np.inf])),
        )
    table.now_s = 0.01 * n
    return table, make_step(
        now_s=table.now_s, waiting=table.view(), cost=None, seats=SEATS, window=_WINDOW
    )
