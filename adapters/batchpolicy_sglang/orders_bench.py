"""SGLang's cache-aware orders against policies of the same kind, on its own scheduler."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.bench import Bench, BenchReport, Progress, ResultTable
from batchpolicy.config import Bounds, PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits, Run
from batchpolicy.requests import FloatArray
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sglang.replay import SglangReplay

_COST = FormulaCost(base_s=0.008, token_s=0.00006)
_SEEDS = 3


@dataclass(frozen=True)
class _Arm:
    name: str
    native: str = ""
    """An order of SGLang's."""
    config: PolicyConfig | None = None


def _ours(policy: str, *, max_wait_s: float = math.inf) -> PolicyConfig:
    return PolicyConfig(policy=PolicySpec(name=policy), bounds=Bounds(max_wait_s=max_wait_s))


_SIZES = (
    _Arm("SGLang fcfs", "fcfs"),
    _Arm("SGLang hrrn", "hrrn"),
    _Arm("fcfs with our admission", config=_ours("fcfs", max_wait_s=1e6)),
    _Arm("highest-response-ratio", config=_ours("highest-response-ratio")),
    _Arm("shortest-first", config=_ours("shortest-first")),
)
_PREFIXES = (
    _Arm("SGLang fcfs", "fcfs"),
    _Arm("SGLang lpm", "lpm"),
    _Arm("fcfs with our admission", config=_ours("fcfs", max_wait_s=1e6)),
    _Arm("longest-prefix", config=_ours("longest-prefix")),
    _Arm("longest-prefix, max_wait_s 8", config=_ours("longest-prefix", max_wait_s=8.0)),
)


class OrdersBench(Bench):
    """``hrrn`` and ``lpm`` of SGLang beside ``highest-response-ratio`` and ``longest-prefix``."""

    summary: ClassVar[str] = "SGLang's hrrn and lpm against policies of the same kind"
    engine: ClassVar[str] = "sglang"

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        seeds = 1 if quick else _SEEDS
        requests = 60 if quick else 300
        # Without a prefix cache SGLang serves in order of arrival, whatever it is told.
        limits = EngineLimits(
            max_num_seqs=32,
            max_num_batched_tokens=2048,
            kv_blocks=6000,
            max_model_len=8192,
            prefix_cache=True,
        )
        sizes = [
            (arm, [_serve(arm, _mixed(s, requests), limits) for s in range(seeds)])
            for arm in _told(_SIZES, progress)
        ]
        # Room for 6 of 24 prefixes, beside what runs.
        limits = EngineLimits(
            max_num_seqs=8,
            max_num_batched_tokens=2048,
            kv_blocks=1400,
            max_model_len=8192,
            prefix_cache=True,
        )
        prefixes = [
            (arm, [_serve(arm, _shared(s, requests + 100), limits) for s in range(seeds)])
            for arm in _told(_PREFIXES, progress)
        ]
        columns = (
            "order",
            "most wait",
            "TTFT mean",
            "p50",
            "p99",
            "long ones, mean",
            "E2E mean",
            "end",
        )
        first = [
            (arm.name, _most(runs), *_times(runs, "long"), _e2e(runs), _end(runs))
            for arm, runs in sizes
        ]
        tables = [
            ResultTable(
                f"{requests} requests of mixed size, {seeds} seeds, seconds",
                columns,
                first,
                "Prompts of 32 to 6,000 tokens, long from 2,000; answers of 10 to 300; load "
                "near 1, fewer than 128 wait.",
            ),
            ResultTable(
                f"{requests + 100} requests at once, 24 shared prefixes, {seeds} seeds, seconds",
                ("order", "prompt cached", "TTFT mean", "p50", "p99", "cold ones, mean", "end"),
                [
                    (arm.name, _cached(runs), *_times(runs, "cold"), _end(runs))
                    for arm, runs in prefixes
                ],
                "1,500 tokens shared and 100 own; every twentieth is cold and shares nothing; "
                "the cache has room for some 6 prefixes beside what runs.",
            ),
        ]
        return BenchReport("Orders of SGLang's kind", (), tables=tables)


def _told(arms: tuple[_Arm, ...], progress: Progress) -> Iterator[_Arm]:
    for arm in arms:
        progress(arm.name)
        yield arm


def _serve(arm: _Arm, workload: Workload, limits: EngineLimits) -> Run:
    return SglangReplay(arm.native or "fcfs").replay(workload, arm.config, limits, _COST)


def _mixed(seed: int, requests: int) -> Workload:
    rng, now_s = random.Random(seed), 0.0
    made: list[WorkloadRequest] = []
    for i in range(requests):
        now_s += rng.expovariate(13.0)
        prompt = int(min(max(rng.lognormvariate(6.2, 1.1), 32), 6000))
        output = int(min(max(rng.lognormvariate(4.2, 0.7), 10), 300))
        kind = "long" if prompt >= 2000 else "short"
        made.append(
            WorkloadRequest(
                id=f"r{i:03}",
                arrival_s=now_s,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=400,
                request_class=kind,
            )
        )
    return Workload("mixed-sizes", tuple(made))


def _shared(seed: int, requests: int) -> Workload:
    rng = random.Random(seed)
    made: list[WorkloadRequest] = []
    for i in range(requests):
        cold = i % 20 == 19
        prefix = f"cold{i}" if cold else f"p{rng.randrange(24)}"
        made.append(
            WorkloadRequest(
                id=f"r{i:03}",
                arrival_s=0.001 * i,
                prompt_tokens=1600,
                output_tokens=20,
                max_tokens=20,
                request_class="cold" if cold else "shares",
                prefix_id=prefix,
                prefix_tokens=1500,
            )
        )
    return Workload("shared-prefixes", tuple(made))


def _times(runs: list[Run], kind: str) -> tuple[str, str, str, str]:
    """TTFT: mean, median, 99th percentile, and the mean of one class; means over seeds."""
    mean: list[float] = []
    median: list[float] = []
    last: list[float] = []
    one: list[float] = []
    for run in runs:
        requests = run.workload.requests
        ttft_s = run.first_token_s - _arrivals(run)
        mean.append(float(ttft_s.mean()))
        median.append(float(np.median(ttft_s)))
        last.append(float(np.quantile(ttft_s, 0.99)))
        one.append(float(ttft_s[[r.request_class == kind for r in requests]].mean()))
    return _text(mean), _text(median), _text(last), _text(one)


def _e2e(runs: list[Run]) -> str:
    return _text([float((r.finished_s - _arrivals(r)).mean()) for r in runs])


def _cached(runs: list[Run]) -> str:
    shares = [
        r.cached_tokens.sum() / sum(one.prompt_tokens for one in r.workload.requests) for r in runs
    ]
    return f"{100 * float(np.mean(shares)):.0f} %"


def _most(runs: list[Run]) -> str:
    return str(max(r.peak_waiting for r in runs))


def _end(runs: list[Run]) -> str:
    return _text([r.end_s for r in runs])


def _text(values: list[float]) -> str:
    return f"{float(np.mean(values)):.2f}"


def _arrivals(run: Run) -> FloatArray:
    return np.array([r.arrival_s for r in run.workload.requests])
