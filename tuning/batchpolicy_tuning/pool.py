"""Runs of a comparison, spread over processes."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.errors import BatchPolicyError
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_tuning.metrics import Measured, measure


class RunFailed(BatchPolicyError):
    """A run ended with an error that is not the user's."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs have in common; sent to each process once."""

    make_engine: Callable[[], Engine]
    limits: EngineLimits
    cost: StepCost
    seed: int


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a policy serves one replication at one load."""

    label: str
    config: PolicyConfig
    load: float
    replication: int
    workload: Workload

    def __str__(self) -> str:
        return f"{self.label}, load {self.load:g}, replication {self.replication}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is kept of a run."""

    measured: Measured
    peak_waiting: int
    end_s: float
    steps: int
    counters: Mapping[str, int]
    digest: str
    wall_s: float


def outcomes(
    bench: Bench, jobs: Sequence[Job], processes: int
) -> Generator[tuple[int, Outcome], None, None]:
    """Position and outcome of each job, as they end.

    With one process all runs are made in this one. Otherwise each process makes its
    engine once and keeps it; when the caller stops, so do they.

    Raises
    ------
    BatchPolicyError
        As the engine raised it, with the run named in front.
    RunFailed
        When a run ends with any other error, or a process dies.
    """
    if processes == 1:
        engine = bench.make_engine()
        for i, job in enumerate(jobs):
            yield i, _outcome(bench, engine, job)
        return
    executor = ProcessPoolExecutor(
        min(processes, len(jobs)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(bench,),
    )
    try:
        with _interrupts_held_back():
            pending = {executor.submit(_run, job): i for i, job in enumerate(jobs)}
        for done in as_completed(pending):
            yield pending[done], _result(done)
    except BaseException:
        # Whoever waits for an error or for Ctrl-C does not want the runs to end first.
        executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    executor.shutdown()


@contextmanager
def _interrupts_held_back() -> Generator[None, None, None]:
    # Processes inherit the mask: Ctrl-C goes to the one that can say so and clean up.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _result(done: Future[Outcome]) -> Outcome:
    try:
        return done.result()
    except BrokenProcessPool as fault:
        raise RunFailed(
            "a process of the comparison died; it may have run out of memory. "
            "Try fewer with --jobs, or smaller replications with --requests."
        ) from fault


_bench: Bench
_engine: Engine | None = None


def _start(bench: Bench) -> None:
    global _bench
    _bench = bench


def _run(job: Job) -> Outcome:
    global _engine
    # Made here and not in _start: an error there would only break the pool.
    if _engine is None:
        _engine = _bench.make_engine()
    return _outcome(_bench, _engine, job)


def _outcome(bench: Bench, engine: Engine, job: Job) -> Outcome:
    started = time.perf_counter()
    try:
        run = engine.replay(job.workload, job.config, bench.limits, bench.cost, seed=bench.seed)
    except BatchPolicyError as fault:
        raise type(fault)(f"{job}: {fault}") from fault
    except Exception as fault:
        at = traceback.extract_tb(fault.__traceback__)[-1]
        where = f"{at.filename}:{at.lineno}"
        raise RunFailed(f"{job}: {type(fault).__name__} in {where}: {fault}") from fault
    return Outcome(
        measured=measure(run),
        peak_waiting=run.peak_waiting,
        end_s=run.end_s,
        steps=run.steps,
        counters=dict(run.counters),
        digest=run.digest(),
        wall_s=time.perf_counter() - started,
    )
