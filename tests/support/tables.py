"""Tables in place of runs, for tests of the tuner; and a worker at one, to be started alone.

``python -m tests.support.tables STORAGE TRIALS [die]`` works at the table until there are enough
trials. With ``die`` it kills itself in the middle of its first one; without, it starts only
when there is a trial, so that somebody is there to be killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.storages import BaseStorage, InMemoryStorage
from typing_extensions import override

from batchpolicy_tuning.tune.judging import Goal, Limit
from batchpolicy_tuning.tune.landscape import Key, Landscape, Row
from batchpolicy_tuning.tune.ledger import Ledger
from batchpolicy_tuning.tune.records import Value
from batchpolicy_tuning.tune.sampler import Proposer, SamplerName
from batchpolicy_tuning.tune.search import Candidate, Course, Search
from batchpolicy_tuning.tune.space import Parameter, Space
from batchpolicy_tuning.tune.storage import open_storage, study_in
from batchpolicy_tuning.tune.workers import own_salt

LIMIT = Limit("ttft.p99<=1s", "ttft.p99", 1.0, True)
GOAL = Goal("goodput", True)


def table(
    rows: Mapping[Key, Sequence[Row]], *, baseline: Mapping[str, Value] | None = None
) -> Landscape:
    """A landscape over ``a``, ``b``, ... with these rows, one for each instance."""
    names = "abcdefgh"[: len(next(iter(rows)))]
    parameters = tuple(
        Parameter(name, choices=tuple(sorted({key[i] for key in rows})))  # type: ignore[type-var]
        for i, name in enumerate(names)
    )
    instances = [f"seed {k}" for k in range(len(next(iter(rows.values()))))]
    return Landscape(Space(parameters), (LIMIT,), (GOAL,), rows, instances, baseline)


def ok(goodput: float, ttft_s: float = 0.5) -> dict[str, float]:
    """What a setting gave."""
    return {"goodput": goodput, "ttft.p99": ttft_s}


def hill(side: int = 8) -> dict[Key, list[Row]]:
    """A hill of ``side`` by ``side`` settings; the limit cuts off where ``a`` is large."""
    best = side // 2
    return {
        (a, b): [ok(100.0 - (a - best) ** 2 - (b - best) ** 2, 0.2 * a)]
        for a in range(side)
        for b in range(side)
    }


def ledger(problem: Landscape, storage: BaseStorage | None = None) -> Ledger:
    """An empty ledger in memory, or that in a storage."""
    kept = storage or InMemoryStorage()
    return Ledger(kept, study_in(kept, "table", [not g.high_is_good for g in problem.goals]),
                  problem.space)  # fmt: skip


def search(
    problem: Landscape,
    kept: Ledger,
    trials: int,
    *,
    sampler: SamplerName = "tpe",
    seed: int = 0,
    course: Course | None = None,
) -> Search[Mapping[str, float]]:
    """A search of the table."""
    proposer = Proposer(problem.space, sampler, seed, len(problem.goals), trials)
    return Search(problem, kept, proposer, course or Course(trials))


@dataclass(frozen=True, slots=True)
class _Deadly(Landscape):
    """Kills whoever measures."""

    @override
    def measure(self, candidate: Candidate, instance: int) -> Mapping[str, float]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it should be dead")


def _work(place: str, trials: int, die: bool) -> None:
    problem = table(hill())
    kept = ledger(problem, open_storage(place))
    if die:
        problem = _Deadly(problem.space, problem.limits, problem.goals, problem.rows, ["seed 0"])
    while not die and not kept.records():
        time.sleep(0.005)
    search(problem, kept, trials, course=Course(trials, salt=own_salt())).run(wait_s=0.01)


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]), "die" in sys.argv[3:])
