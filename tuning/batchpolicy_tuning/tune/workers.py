"""Several processes at one study: each claims trials from the storage by itself."""

from __future__ import annotations

import multiprocessing
import signal
import time
import zlib
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from threading import Thread

from batchpolicy import registry
from batchpolicy_tuning.pool import end_with_the_parent, not_interrupted
from batchpolicy_tuning.tune import worker_id
from batchpolicy_tuning.tune.ledger import Ledger
from batchpolicy_tuning.tune.problem import Instance, ReplayProblem
from batchpolicy_tuning.tune.records import TrialRecord
from batchpolicy_tuning.tune.sampler import Proposer
from batchpolicy_tuning.tune.search import Course, Search
from batchpolicy_tuning.tune.storage import StorageLost, answering, open_storage, study_in
from batchpolicy_tuning.tune.study import Study

_LOOK_S = 0.2
_END_S = 5.0


def ledger_of(study: Study, place: str) -> Ledger:
    """The trials of a study in its storage."""
    storage = open_storage(place)
    low_is_good = [objective.low_is_good for objective in study.objectives]
    return Ledger(storage, study_in(storage, study.name, low_is_good), study.settings.space)


def search_of(
    problem: ReplayProblem,
    ledger: Ledger,
    trials: int,
    salt: int,
    told: Callable[[TrialRecord], None],
) -> Search[object]:
    """The search of a study for one worker."""
    spec = problem.study.file.search
    proposer = Proposer(
        problem.space, spec.sampler, spec.seed, len(problem.goals), max(trials, spec.trials)
    )
    course = Course(trials, spec.prune_level, spec.timeout_s, salt)
    found: Search[object] = Search(problem, ledger, proposer, course, told)  # type: ignore[arg-type]
    return found


def own_salt() -> int:
    """A number that other workers do not have."""
    return zlib.crc32(worker_id.this_worker().encode()) | 1


def run_workers(
    study: Study,
    place: str,
    instances: Sequence[Instance],
    jobs: int,
    trials: int,
    look: Callable[[], None],
) -> None:
    """Run workers in processes of their own until they are done; ``look`` is called meanwhile.

    A process that dies costs nobody a trial: the others, or whoever comes next, take it over.
    """
    context = multiprocessing.get_context("spawn")
    arguments = (study, place, tuple(instances), trials)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(jobs)]
    try:
        for worker in workers:
            with not_interrupted():
                worker.start()
        while any(worker.is_alive() for worker in workers):
            time.sleep(_LOOK_S)
            look()
    finally:
        _ended(workers)
    look()


def _ended(workers: Sequence[BaseProcess]) -> None:
    """Ask those that are left to end, so that they give their trials back, then make them."""
    left = [worker for worker in workers if worker.pid is not None and worker.is_alive()]
    for worker in left:
        worker.terminate()
    until = time.monotonic() + _END_S
    for worker in left:
        worker.join(max(until - time.monotonic(), 0.0))
        if worker.is_alive():
            worker.kill()
            worker.join()


def _work(study: Study, place: str, instances: Sequence[Instance], trials: int) -> None:
    Thread(target=end_with_the_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # One that came while this process started is raised here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        problem = ReplayProblem(study, registry.engine(study.search_engine), instances)
        with answering(place):
            ledger = ledger_of(study, place)
            search_of(problem, ledger, trials, own_salt(), lambda _: None).run()
    except (KeyboardInterrupt, StorageLost):
        return  # the trial was given back, or cannot be; whoever started this one says so
