"""One run of a comparison."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.errors import BatchPolicyError
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_tuning.metrics import Measured, measure
from batchpolicy_tuning.pool import RunFailed
from batchpolicy_tuning.pooled import Facts
from batchpolicy_tuning.recording import Recorder, Recording


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is kept of a run."""

    measured: Measured
    facts: Facts
    recording: Recording | None
    """What happened over time, where it was asked for."""
    peak_waiting: int
    end_s: float
    steps: int
    counters: Mapping[str, int]
    digest: str
    wall_s: float


@dataclass(frozen=True, slots=True)
class Replay:
    """A policy serves one replication at one load."""

    title: str
    """What errors call it."""
    config: PolicyConfig
    workload: Workload
    limits: EngineLimits
    cost: StepCost
    seed: int
    record: bool = False
    """Whether to keep what happened over time."""

    def __call__(self, engine: Engine, /) -> Outcome:
        """Replay it and measure.

        Raises
        ------
        BatchPolicyError
            As the engine raised it, with the title in front.
        RunFailed
            When it ends with any other error.
        """
        started = time.perf_counter()
        recorder = Recorder(self.limits) if self.record else None
        try:
            run = engine.replay(
                self.workload,
                self.config,
                self.limits,
                self.cost,
                seed=self.seed,
                observer=recorder,
            )
        except BatchPolicyError as fault:
            raise type(fault)(f"{self.title}: {fault}") from fault
        except Exception as fault:
            at = traceback.extract_tb(fault.__traceback__)[-1]
            where = f"{at.filename}:{at.lineno}"
            raise RunFailed(f"{self.title}: {type(fault).__name__} in {where}: {fault}") from fault
        return Outcome(
            measured=measure(run),
            facts=Facts.of(run),
            recording=None if recorder is None else recorder.recording(run),
            peak_waiting=run.peak_waiting,
            end_s=run.end_s,
            steps=run.steps,
            counters=dict(run.counters),
            digest=run.digest(),
            wall_s=time.perf_counter() - started,
        )
