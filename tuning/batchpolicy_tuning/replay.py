"""One run of a comparison."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, EngineLimits, Observer, Run
from batchpolicy.errors import BatchPolicyError
from batchpolicy.requests import Status
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_tuning.metrics import Measured, measure
from batchpolicy_tuning.pool import RunFailed
from batchpolicy_tuning.pooled import Facts
from batchpolicy_tuning.queue_course import QueueCourse
from batchpolicy_tuning.recording import Recorder, Recording


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is kept of a run."""

    measured: Measured
    facts: Facts
    recording: Recording | None
    """What happened over time, where it was asked for."""
    queue: QueueCourse
    ends: Mapping[str, int]
    """Requests by how they ended; those still waiting or running had not."""
    peak_waiting: int
    end_s: float
    steps: int
    counters: Mapping[str, int]
    digest: str
    wall_s: float
    scheduler_s: float
    """Thread time inside the engine's scheduler; NaN where the engine does not tell."""

    @property
    def unfinished(self) -> int:
        """Requests that had not ended when the run did."""
        return sum(self.ends.get(status.name.lower(), 0) for status in _UNFINISHED)

    @property
    def faults(self) -> int:
        """Failures of the policy or of the adapter, which the run survived."""
        return sum(count for name, count in self.counters.items() if name.endswith("_faults"))

    @property
    def predictor_faults(self) -> int:
        """Failures of the predictor among them, after each of which the policy served on."""
        return self.counters.get("predictor_faults", 0)


_UNFINISHED = (Status.WAITING, Status.RUNNING)


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
    max_steps: int = 10_000_000
    """Steps after which the run is given up."""

    def __call__(self, engine: Engine, /) -> Outcome:
        """Replay it and measure; raises what ``run`` does."""
        started = time.perf_counter()
        recorder = Recorder(self.limits) if self.record else None
        run = self.run(engine, recorder)
        return Outcome(
            measured=measure(run),
            facts=Facts.of(run),
            recording=None if recorder is None else recorder.recording(run),
            queue=QueueCourse.of(run),
            ends=dict(
                sorted(Counter(Status(s).name.lower() for s in run.status.tolist()).items())
            ),
            peak_waiting=run.peak_waiting,
            end_s=run.end_s,
            steps=run.steps,
            counters=dict(run.counters),
            digest=run.digest(),
            wall_s=time.perf_counter() - started,
            scheduler_s=run.scheduler_s,
        )

    def run(self, engine: Engine, observer: Observer | None = None) -> Run:
        """Replay it.

        Raises
        ------
        BatchPolicyError
            As the engine raised it, with the title in front.
        RunFailed
            When it ends with any other error.
        """
        try:
            return engine.replay(
                self.workload,
                self.config,
                self.limits,
                self.cost,
                seed=self.seed,
                max_steps=self.max_steps,
                observer=observer,
            )
        except BatchPolicyError as fault:
            raise type(fault)(f"{self.title}: {fault}") from fault
        except Exception as fault:
            at = traceback.extract_tb(fault.__traceback__)[-1]
            where = f"{at.filename}:{at.lineno}"
            raise RunFailed(f"{self.title}: {type(fault).__name__} in {where}: {fault}") from fault
