"""What a policy costs the SGLang scheduler: stock and ours, step by step in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from batchpolicy.bench import Measurement, Progress
from batchpolicy.config import PolicyConfig, config_named
from batchpolicy.engine import EngineLimits
from batchpolicy.workload import Workload, WorkloadRequest

from batchpolicy_sglang import quiet as quiet  # isort: skip - before SGLang is imported
from batchpolicy_sglang.attach import attach
from batchpolicy_sglang.clients import Clients
from batchpolicy_sglang.driver import Driver
from batchpolicy_sglang.model import make_scheduler
from batchpolicy_sglang.seams import batches, names

STEPS = 200
NOTES = (
    f"Calls: policy benefit against SGLang's own fcfs and priority orders, medians of {STEPS} "
    "of each, alternated; get_next_batch_to_run() + process_batch_result(), of the order alone "
    "calc_priority() and what plans it. One class, so that nobody is displaced; ten tenants, "
    "all with a TTFT target; prompts of 64 tokens, no overlap.",
)
_PROMPT_TOKENS = 64
_TOKEN = 7


def scheduler_costs(progress: Progress, *, quick: bool) -> list[Measurement]:
    """Scheduler time of SGLang with ``benefit`` over its own orders."""
    steps = 20 if quick else STEPS
    found: list[Measurement] = []
    for seats in (64, 256):
        for waiting in (0, 1_000, 10_000):
            progress(f"{seats} running, {waiting:,} waiting")
            what = f"{seats} running, {waiting:,} waiting"
            sides = [_Side(seats, waiting, order) for order in ("fcfs", "priority", "ours")]
            stock, _, ours = _alternate(sides, steps, _Side.full_step)
            found.append(_at_most(f"{what}: full, decodes", ours / stock, 1.05, stock, ours))
            if waiting:
                stock, priority, ours = _alternate(sides, steps, _Side.churn_step)
                name = f"{what}: one out, one in, a prefill"
                if waiting == 1_000:
                    found.append(_at_most(name, ours / stock, 1.3, stock, ours))
                found.append(
                    _at_most(f"{name}, against priority", ours / priority, 1.0, priority, ours)
                )
            if waiting == 10_000:
                _, priority, ours = (statistics.median(side.orders) for side in sides)
                found.append(
                    Measurement(
                        f"{what}: the order alone",
                        f"{1e3 * ours:.2f} ms, priority {1e3 * priority:.2f} ms",
                        "<= 1.5 ms and 4x less than priority",
                        ours <= 1.5e-3 and 4 * ours <= priority,
                    )
                )
            del sides
            gc.collect()
    return found


def _alternate(
    sides: Sequence[_Side], steps: int, step: Callable[[_Side], float]
) -> tuple[float, ...]:
    """Median thread time of a step on each side, which take turns; seconds."""
    took: list[list[float]] = [[] for _ in sides]
    gc.disable()
    try:
        for _ in range(steps):
            for times, side in zip(took, sides, strict=True):
                times.append(step(side))
    finally:
        gc.enable()
    return tuple(statistics.median(times) for times in took)


class _Side:
    """One scheduler with full seats and a queue."""

    def __init__(self, seats: int, waiting: int, order: str) -> None:
        limits = EngineLimits(
            max_num_seqs=seats,
            max_num_batched_tokens=8192,
            kv_blocks=100_000,
            max_model_len=100_000,
        )
        own = "priority" if order == "priority" else "fcfs"
        self._scheduler = make_scheduler(limits, lambda _: None, order=own)
        self._scheduler.model_worker.forward_batch_generation = _forward
        if order == "ours":
            _follow(self._scheduler, config_named("benefit"))
        self.orders: list[float] = []
        """Thread time of each order of the queue, and of planning it."""
        self._scheduler.policy.calc_priority = self._timed(self._scheduler.policy.calc_priority)
        if order == "ours":
            defer = self._timed(self._scheduler._should_defer_prefill)
            self._scheduler._should_defer_prefill = defer
        self._clients = Clients(Workload("one", (_request("r"),)), prefix_cache=False, seed=0)
        self._ids = (f"r{i}" for i in range(10**9))
        self._add(seats)
        while len(self._scheduler.running_batch.reqs) < seats:
            self._step()
        self._add(waiting)
        for _ in range(3):
            self._step()
        self.orders.clear()

    def full_step(self) -> float:
        """A step in which nobody can be admitted; its thread time in seconds."""
        return self._step()

    def churn_step(self) -> float:
        """One request ends and another comes, then a step that admits one."""
        reqs = self._scheduler.running_batch.reqs
        reqs[len(reqs) // 2].to_finish = names.schedule_batch.FINISH_LENGTH(1)
        self._step()
        self._add(1)
        self._spent = 0.0
        took = self._step()
        self.orders.append(self._spent)
        return took

    def _step(self) -> float:
        scheduler = self._scheduler
        started = time.thread_time()
        batch = batches.schedule(scheduler)
        scheduled = time.thread_time()
        result = scheduler.run_batch(batch)
        resumed = time.thread_time()
        scheduler.process_batch_result(batch, result)
        took = time.thread_time() - resumed + scheduled - started
        scheduler.last_batch = batch
        return took

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        self._spent = 0.0

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            found = call(*args, **kwargs)
            self._spent += time.thread_time() - started
            return found

        return timed

    def _add(self, count: int) -> None:
        messages = [self._clients.request(_request(next(self._ids))) for _ in range(count)]
        if messages:
            self._scheduler.process_input_requests(messages)


def _request(name: str) -> WorkloadRequest:
    number = int(name[1:] or 0)
    return WorkloadRequest(
        id=name,
        arrival_s=0.0,
        prompt_tokens=_PROMPT_TOKENS,
        output_tokens=5_000,
        max_tokens=5_000,
        tenant=f"t{number % 10}",
        ttft_slo_s=1.0,
    )


def _follow(scheduler: Any, config: PolicyConfig) -> None:
    attach(scheduler, Driver(scheduler, config, time.monotonic))


def _forward(batch: Any, **_: Any) -> Any:
    tokens = names.torch.full((len(batch.reqs),), _TOKEN, dtype=names.torch.int64)
    return names.results.GenerationBatchResult(next_token_ids=tokens)


def _at_most(what: str, ratio: float, most: float, before: float, after: float) -> Measurement:
    return Measurement(
        what,
        f"{ratio:.3f}x ({1e6 * before:.0f} to {1e6 * after:.0f} us)",
        f"<= {most:g}x",
        ratio <= most,
    )
