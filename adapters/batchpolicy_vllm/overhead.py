"""What a policy costs the vLLM scheduler: stock and ours, step by step in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchpolicy.bench import Measurement, Progress
from batchpolicy.config import config_named
from batchpolicy.engine import EngineLimits

from batchpolicy_vllm import quiet as quiet  # isort: skip - before vLLM is imported
from batchpolicy_vllm import seams
from batchpolicy_vllm.model import make_scheduler, vllm_config
from batchpolicy_vllm.scheduler import scheduler_class

STEPS = 300
NOTES = (
    f"Calls: policy benefit against stock fcfs, medians of {STEPS} of each, alternated; "
    "schedule() + update_from_output(), of an abort alone. One class, so that nobody is "
    "displaced; ten tenants, all with a TTFT target.",
)
_PROMPT_TOKENS = 64
_TOKEN = 7


@dataclass(frozen=True, slots=True)
class Costs:
    """Median thread time of one call, in microseconds."""

    stock_us: float
    ours_us: float

    @property
    def ratio(self) -> float:
        """Ours over stock."""
        return self.ours_us / self.stock_us


def scheduler_costs(progress: Progress, *, quick: bool) -> list[Measurement]:
    """Scheduler time of vLLM with ``benefit`` over stock fcfs, per step and per abort."""
    steps = 30 if quick else STEPS
    found: list[Measurement] = []
    for seats in (64, 256):
        for waiting in (0, 1_000, 10_000):
            progress(f"{seats} running, {waiting:,} waiting")
            pair = _Pair(seats, waiting)
            full = pair.alternate(steps, _Side.full_step)
            found.append(_measured(f"{seats} running, {waiting:,} waiting: full", full, 1.03))
            if waiting:
                churn = pair.alternate(steps, _Side.churn_step)
                goal = 1.3 if waiting == 10_000 else 1.15
                name = f"{seats} running, {waiting:,} waiting: one out, one in"
                found.append(_measured(name, churn, goal))
            if waiting == 10_000:
                abort = pair.alternate(steps, _Side.abort)
                name = f"{seats} running, {waiting:,} waiting: abort of one that waits"
                found.append(_measured(name, abort, 1.0))
            del pair
            gc.collect()
    return found


class _Pair:
    """The same requests in a stock scheduler and in ours."""

    def __init__(self, seats: int, waiting: int) -> None:
        limits = EngineLimits(
            max_num_seqs=seats,
            max_num_batched_tokens=8192,
            kv_blocks=400_000,
            max_model_len=100_000,
        )
        config = vllm_config(limits)
        ours = scheduler_class(seams.Scheduler, config_named("benefit"), time.monotonic)
        self._sides = tuple(
            _Side(make_scheduler(cls, config), seats, waiting) for cls in (seams.Scheduler, ours)
        )

    def alternate(self, steps: int, step: Callable[[_Side], float]) -> Costs:
        """Median cost of a step on both sides, which take turns."""
        stock: list[float] = []
        ours: list[float] = []
        gc.disable()
        try:
            for _ in range(steps):
                stock.append(step(self._sides[0]))
                ours.append(step(self._sides[1]))
        finally:
            gc.enable()
        return Costs(1e6 * statistics.median(stock), 1e6 * statistics.median(ours))


class _Side:
    """One scheduler with full seats and a queue."""

    def __init__(self, scheduler: Any, seats: int, waiting: int) -> None:
        self._scheduler = scheduler
        self._ids = (f"r{i}" for i in range(10**9))
        for _ in range(seats):
            self._add()
        while any(r.is_prefill_chunk or not r.num_output_tokens for r in scheduler.running) or (
            len(scheduler.running) < seats
        ):
            self.full_step()
        for _ in range(waiting):
            self._add()
        for _ in range(3):
            self.full_step()

    def full_step(self) -> float:
        """A step in which nobody can be admitted; its thread time in seconds."""
        scheduler = self._scheduler
        started = time.thread_time()
        output = scheduler.schedule()
        scheduled = time.thread_time()
        ids = list(output.num_scheduled_tokens)
        sampled = seams.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[
                [] if scheduler.requests[i].is_prefill_chunk else [_TOKEN] for i in ids
            ],
        )
        resumed = time.thread_time()
        scheduler.update_from_output(output, sampled)
        return time.thread_time() - resumed + scheduled - started

    def churn_step(self) -> float:
        """One request ends and another comes, then a step that admits one."""
        scheduler = self._scheduler
        ended = scheduler.running[len(scheduler.running) // 2].request_id
        scheduler.finish_requests(ended, seams.RequestStatus.FINISHED_ABORTED)
        self._add()
        return self.full_step()

    def abort(self) -> float:
        """The client of a waiting request leaves; thread time in seconds."""
        scheduler = self._scheduler
        waiting = list(scheduler.waiting)
        request_id = waiting[len(waiting) // 2].request_id
        started = time.thread_time()
        scheduler.finish_requests(request_id, seams.RequestStatus.FINISHED_ABORTED)
        took = time.thread_time() - started
        self._add()
        return took

    def _add(self) -> None:
        number = next(self._ids)
        self._scheduler.add_request(
            seams.Request(
                request_id=number,
                prompt_token_ids=[0] * _PROMPT_TOKENS,
                sampling_params=seams.SamplingParams(
                    max_tokens=90_000,
                    temperature=0.0,
                    ignore_eos=True,
                    extra_args={"tenant": f"t{int(number[1:]) % 10}", "ttft_slo_s": 1.0},
                ),
                pooling_params=None,
                arrival_time=time.monotonic(),
            )
        )


def _measured(what: str, costs: Costs, most: float) -> Measurement:
    return Measurement(
        what,
        f"{costs.ratio:.3f}x ({costs.stock_us:.0f} to {costs.ours_us:.0f} us)",
        f"<= {most:g}x",
        costs.ratio <= most,
    )
