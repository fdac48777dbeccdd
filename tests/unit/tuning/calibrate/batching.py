"""A plain engine whose time is the step cost, and runs that it could have recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, EngineLimits, Observer, Run
from batchpolicy.requests import Status
from batchpolicy.step_cost import FormulaCost, StepCost, StepShape
from batchpolicy.workload import Workload, WorkloadRequest

BASE = FormulaCost(weights_s=0.01, token_s=1e-4, decode_context_token_s=1e-6)
LIMITS = {"max_num_seqs": 8, "max_num_batched_tokens": 2048}


class BatchingEngine(Engine):
    """Starts whole prompts in order of arrival while there are seats; all others decode."""

    name: ClassVar[str] = "batching"
    capabilities: ClassVar[frozenset[str]] = frozenset()
    version = "batching 1"

    @override
    def replay(
        self,
        workload: Workload,
        config: PolicyConfig | None,
        limits: EngineLimits,
        cost: StepCost,
        *,
        seed: int = 0,
        max_steps: int = 10_000_000,
        observer: Observer | None = None,
    ) -> Run:
        requests, n = workload.requests, len(workload.requests)
        started, first, ended = (np.full(n, math.nan) for _ in range(3))
        done = np.zeros(n, dtype=np.int64)
        waiting, running = list(range(n)), list[int]()
        now_s, steps = 0.0, 0
        while waiting or running:
            if not running:
                now_s = max(now_s, requests[waiting[0]].arrival_s)
            decodes, prefill, attention, budget = list(running), 0, 0.0, 2048 - len(running)
            while waiting and len(running) < limits.max_num_seqs:
                r = requests[waiting[0]]
                if r.arrival_s > now_s or r.prompt_tokens > budget:
                    break
                row = waiting.pop(0)
                started[row] = now_s
                running.append(row)
                budget -= r.prompt_tokens
                prefill += r.prompt_tokens
                attention += r.prompt_tokens**2 / 2
            context = sum(requests[row].prompt_tokens + int(done[row]) - 1 for row in decodes)
            shape = StepShape(prefill, attention, 0, len(decodes), context, len(running))
            now_s += cost(shape)
            steps += 1
            for row in list(running):
                done[row] += 1
                if done[row] == 1:
                    first[row] = now_s
                if done[row] == requests[row].output_tokens:
                    ended[row] = now_s
                    running.remove(row)
        return Run(
            workload=workload,
            engine=self.version,
            policy="fcfs",
            status=np.full(n, Status.FINISHED, dtype=np.int64),
            first_scheduled_s=started,
            first_token_s=first,
            finished_s=ended,
            longest_gap_s=np.zeros(n),
            output_tokens=done,
            cached_tokens=np.zeros(n, dtype=np.int64),
            preemptions=np.zeros(n, dtype=np.int64),
            recomputed_tokens=np.zeros(n, dtype=np.int64),
            steps=steps,
            end_s=now_s,
            peak_waiting=0,
        )


class LosingEngine(BatchingEngine):
    """Ends the last request before its last token."""

    @override
    def replay(self, *args: Any, **more: Any) -> Run:
        run = super().replay(*args, **more)
        run.status[-1] = Status.REFUSED
        return run


def workload(count: int = 90, gap_s: float = 0.25, seed: int = 1) -> Workload:
    """Requests of mixed lengths at random times; 8 seats are busy and sometimes all taken."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(gap_s, count))
    arrival_s -= arrival_s[0]
    return Workload(
        "made",
        tuple(
            WorkloadRequest(
                id=f"r{i}",
                arrival_s=float(arrival_s[i]),
                prompt_tokens=int(rng.integers(20, 1500)),
                output_tokens=int(output := rng.integers(2, 120)),
                max_tokens=int(output),
            )
            for i in range(count)
        ),
    )


def recorded(cost: StepCost, made: Workload | None = None) -> list[dict[str, Any]]:
    """The lines that a server of this cost would have logged, on a clock that began before."""
    made = workload() if made is None else made
    limits = EngineLimits(kv_blocks=10_000, **LIMITS)
    run = BatchingEngine().replay(made, None, limits, cost)
    return [
        {
            "request_id": r.id,
            "input_toks": r.prompt_tokens,
            "output_toks": r.output_tokens,
            "arrival_time": 1e9 + r.arrival_s,
            "queued_ts": 5000.0 + r.arrival_s,
            "scheduled_ts": 5000.0 + float(run.first_scheduled_s[i]),
            "first_token_ts": 5000.0 + float(run.first_token_s[i]),
            "last_token_ts": 5000.0 + float(run.finished_s[i]),
        }
        for i, r in enumerate(made.requests)
    ]


def write_run(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "made_requests.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_facts(folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Metadata that say all, but for the changes."""
    facts: dict[str, Any] = {
        "model": "some/model",
        "vllm_version": "0.19.0",
        "engine_kwargs": {"tensor_parallel_size": 1, **LIMITS},
        "kv_cache": {"num_gpu_blocks": 10_000, "block_size": 16, "enable_prefix_caching": False},
        "hardware": {"device_name": "A GPU"},
    }
    path = folder / "made_meta.json"
    path.write_text(json.dumps(facts | dict(changes or {})))
    return path
