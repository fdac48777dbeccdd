"""What deciding costs, measured on this machine and through the engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice, pairwise
from typing import Any

from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, StepRecord
from batchpolicy.errors import StepLimitReached
from batchpolicy.policy import Policy
from batchpolicy.workload import Workload
from batchpolicy_tuning.cases.setting import Setting

_STEPS, _SKIPPED, _RUNS = 60, 10, 3
_HOOKS = (
    "benefit", "tier", "keep_benefit", "admissible", "rank", "limits",
    "on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished",
)  # fmt: skip


def seconds_per_decision(engine: Engine, setting: Setting, queue: int) -> float:
    """Processor time of a step that admits, with about ``queue`` requests left waiting.

    The median over steps, the least over runs. The requests are the case's, over and over,
    each of 16 prompt tokens and one output token, so that every step has seats to fill.
    """
    limits = replace(setting.limits, max_waiting=None)
    limits = replace(limits, kv_blocks=max(limits.kv_blocks, 4 * limits.max_num_seqs + 4))
    count = queue + limits.max_num_seqs * _STEPS
    short = {
        "arrival_s": 0.0, "prompt_tokens": 16, "output_tokens": 1, "max_tokens": 1,
        "cancel_at_s": float("inf"), "ready_at_s": float("-inf"), "arrival_after": "",
        "gap_s": 0.0, "encoder_tokens": 0, "session": "", "prefix_id": "", "prefix_tokens": 0,
        "prefix_blocks": (), "prefix_block_tokens": 0, "queue_ttl_s": float("inf"),
    }  # fmt: skip
    some: list[Any] = list(islice(cycle(setting.workload.requests), count))
    workload = Workload(
        "queue", tuple(replace(r, id=f"q{i}", **short) for i, r in enumerate(some))
    )
    return min(_median_step_s(engine, replace(setting, workload=workload, limits=limits))
               for _ in range(_RUNS))  # fmt: skip


def _median_step_s(engine: Engine, setting: Setting) -> float:
    marks: list[float] = []

    def note(step: StepRecord) -> None:
        marks.append(time.thread_time())

    try:
        engine.replay(
            setting.workload,
            setting.config,
            setting.limits,
            setting.clock,
            max_steps=_STEPS,
            observer=note,
        )
    except StepLimitReached:
        pass  # as meant: the queue is not to be emptied
    # The first steps also take the arrivals in.
    kept = marks[_SKIPPED:]
    return statistics.median(b - a for a, b in pairwise(kept))


def policy_cpu_s(engine: Engine, setting: Setting) -> float:
    """Processor time that the policy's own methods take over a run of the case."""
    config = _TimedConfig(**dict(setting.config))
    engine.replay(setting.workload, config, setting.limits, setting.clock)
    return config.seconds


class _TimedConfig(PolicyConfig):
    """A configuration whose policies note the time that they take."""

    _meter: _Meter = PrivateAttr(default_factory=lambda: _Meter())

    @property
    def seconds(self) -> float:
        """Processor time so far."""
        return self._meter.seconds

    @override
    def build_policy(self) -> Policy:
        policy = super().build_policy()
        cls = type(policy)
        own = {
            name: self._meter.around(getattr(cls, name))
            for name in _HOOKS
            if getattr(cls, name) is not getattr(Policy, name)
        }
        # Of a frozen model, so that its parameters and state stay as they are.
        object.__setattr__(policy, "__class__", type(cls.__name__, (cls,), own))
        return policy


class _Meter:
    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            if self._inside:
                return method(*args, **more)
            self._inside = True
            start_s = time.thread_time()
            try:
                return method(*args, **more)
            finally:
                self.seconds += time.thread_time() - start_s
                self._inside = False

        return timed
