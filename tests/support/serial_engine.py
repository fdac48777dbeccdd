"""An engine so plain that its runs can be worked out by hand."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, EngineLimits, Observer, Run, StepRecord
from batchpolicy.errors import StepLimitReached, WorkloadError
from batchpolicy.requests import Status
from batchpolicy.step_cost import StepCost, StepShape
from batchpolicy.workload import Workload, WorkloadRequest


class SerialEngine(Engine):
    """Serves one request after another, a millisecond for each token of it.

    A request of ``p`` prompt and ``n`` output tokens has its first token after ``p`` ms
    and ends after ``p + n - 1``; an observer sees these two steps. The next is the first
    in arrival order, or under the policy ``priority`` the most urgent; nobody is displaced.
    """

    name: ClassVar[str] = "serial"
    capabilities: ClassVar[frozenset[str]] = frozenset({"priority"})

    @property
    @override
    def version(self) -> str:
        return "serial 1"

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
        by_priority = config is not None and config.policy.name == "priority"

        def rank(row: int) -> tuple[int, int]:
            return (requests[row].priority if by_priority else 0, row)

        requests = workload.requests
        n = len(requests)
        started, first, ended = (np.full(n, math.nan) for _ in range(3))
        now_s, peak, left = 0.0, 0, list(range(n))
        while left:
            now_s = max(now_s, min(requests[row].arrival_s for row in left))
            here = [row for row in left if requests[row].arrival_s <= now_s]
            peak = max(peak, len(here) - 1)
            row = min(here, key=rank)
            left.remove(row)
            r = requests[row]
            if r.prompt_tokens > 100_000:
                raise WorkloadError(f"request {r.id!r} is too long")
            started[row] = now_s
            first[row] = now_s + r.prompt_tokens / 1000
            now_s = ended[row] = first[row] + (r.output_tokens - 1) / 1000
            for start_s, end_s, tokens in (
                (started[row], first[row], r.prompt_tokens),
                (first[row], now_s, r.output_tokens - 1),
            ):
                if observer is not None and tokens:
                    observer(
                        StepRecord(
                            index=n - len(left) - 1,
                            start_s=start_s,
                            duration_s=end_s - start_s,
                            tokens={r.id: tokens},
                            preempted=(),
                            running=1,
                            waiting=sum(
                                q.arrival_s <= start_s for q in map(requests.__getitem__, left)
                            ),
                            free_kv_blocks=limits.kv_blocks - -(-r.prompt_tokens // 16),
                        )
                    )
        return Run(
            workload=workload,
            engine=self.name,
            policy="fcfs" if config is None else config.label,
            status=np.full(n, Status.FINISHED, dtype=np.int64),
            first_scheduled_s=started,
            first_token_s=first,
            finished_s=ended,
            longest_gap_s=np.zeros(n),
            output_tokens=np.array([r.output_tokens for r in requests], dtype=np.int64),
            cached_tokens=np.zeros(n, dtype=np.int64),
            preemptions=np.zeros(n, dtype=np.int64),
            recomputed_tokens=np.zeros(n, dtype=np.int64),
            steps=n,
            end_s=now_s,
            peak_waiting=peak,
        )


class NoCost(StepCost):
    """Never asked: the serial engine has a clock of its own."""

    @override
    def __call__(self, shape: StepShape) -> float:
        raise AssertionError("not asked")


LIMITS = EngineLimits(max_num_seqs=1, max_num_batched_tokens=2048, kv_blocks=1000)


def request(id: str, arrival_s: float, prompt_tokens: int, **more: object) -> WorkloadRequest:
    """A request with one output token unless told otherwise."""
    facts = {"output_tokens": 1, "max_tokens": 1024, **more}
    return WorkloadRequest(id=id, arrival_s=arrival_s, prompt_tokens=prompt_tokens, **facts)  # type: ignore[arg-type]


class InterruptedEngine(SerialEngine):
    """Presses Ctrl-C in the middle of the comparison, and again, and never comes back."""

    sent: ClassVar[signal.Signals] = signal.SIGINT

    @override
    def replay(
        self, workload: Workload, config: PolicyConfig | None, *args: Any, **more: Any
    ) -> Run:
        if config is None:
            return super().replay(workload, config, *args, **more)
        in_worker = multiprocessing.parent_process() is not None
        told = os.getppid() if in_worker else os.getpid()
        while True:
            if os.getppid() == told or not in_worker:
                os.kill(told, self.sent)


class TerminatedEngine(InterruptedEngine):
    """Is told to end, as by a supervisor, and told again."""

    sent: ClassVar[signal.Signals] = signal.SIGTERM


class KilledEngine(InterruptedEngine):
    """Kills the comparison, and goes on."""

    sent: ClassVar[signal.Signals] = signal.SIGKILL


class FailingEngine(SerialEngine):
    """Fails in each run under a policy."""

    @override
    def replay(
        self, workload: Workload, config: PolicyConfig | None, *args: Any, **more: Any
    ) -> Run:
        if config is None:
            return super().replay(workload, config, *args, **more)
        raise ZeroDivisionError("no seats")


class FaultyEngine(SerialEngine):
    """Counts two faults of the policy in each run under one."""

    @override
    def replay(
        self, workload: Workload, config: PolicyConfig | None, *args: Any, **more: Any
    ) -> Run:
        run = super().replay(workload, config, *args, **more)
        by_policy = config is not None and config.policy.name == "priority"
        return replace(run, counters={"policy_faults": 2}) if by_policy else run


class DyingEngine(SerialEngine):
    """Takes its process with it."""

    @override
    def replay(
        self, workload: Workload, config: PolicyConfig | None, *args: Any, **more: Any
    ) -> Run:
        if config is None:
            return super().replay(workload, config, *args, **more)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


class StuckEngine(SerialEngine):
    """Leaves a request in each run under a policy, as if it still ran."""

    @override
    def replay(
        self, workload: Workload, config: PolicyConfig | None, *args: Any, **more: Any
    ) -> Run:
        run = super().replay(workload, config, *args, **more)
        if config is not None:
            run.status[-1] = Status.RUNNING
            run.finished_s[-1] = math.nan
        return run


class EndlessEngine(SerialEngine):
    """Reaches its limit of steps in each run under a policy."""

    @override
    def replay(
        self, workload: Workload, config: PolicyConfig | None, *args: Any, **more: Any
    ) -> Run:
        if config is None:
            return super().replay(workload, config, *args, **more)
        raise StepLimitReached("10 steps did not serve it")
