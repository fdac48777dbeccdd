"""The tabulated landscape that the tuner is measured on: every setting under every seed."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import optuna

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.judging import Goal, Limit
from batchpolicy_tuning.tune.landscape import Key, Landscape, Row
from batchpolicy_tuning.tune.ledger import Ledger
from batchpolicy_tuning.tune.records import TrialRecord, Value
from batchpolicy_tuning.tune.sampler import Proposer, SamplerName
from batchpolicy_tuning.tune.search import Course, Search
from batchpolicy_tuning.tune.space import Parameter, Space
from batchpolicy_tuning.tune.storage import study_in

FILE = "landscape_640x5.csv.gz"
PARAMETERS = ("max_num_seqs", "max_num_batched_tokens", "lam")
LIMIT = Limit("tpot.p99<=50ms", "tpot.p99", 0.05, True)
GOAL = Goal("goodput", True)
BASELINE = {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "lam": 1.0}


@dataclass(frozen=True, slots=True)
class Table:
    """What each setting gave under each seed of the workload."""

    space: Space
    rows: Mapping[Key, Mapping[int, Mapping[str, float]]]
    seeds: tuple[int, ...]

    def landscape(self, seeds: Sequence[int]) -> Landscape:
        """The problem on some of the seeds."""
        rows: dict[Key, Sequence[Row]] = {
            key: [by_seed[seed] for seed in seeds] for key, by_seed in self.rows.items()
        }
        names = [f"seed {seed}" for seed in seeds]
        return Landscape(self.space, (LIMIT,), (GOAL,), rows, names, BASELINE)

    def key_of(self, params: Mapping[str, Value]) -> Key:
        """Where a setting stands in the table."""
        return tuple(params[one.name] for one in self.space.parameters)

    def means(self, key: Key, seeds: Sequence[int]) -> dict[str, float]:
        """What a setting gives on average."""
        found = [self.rows[key][seed] for seed in seeds]
        return {name: sum(row[name] for row in found) / len(found) for name in found[0]}

    def optimum(self, seeds: Sequence[int]) -> float:
        """The best goodput that keeps the limit."""
        values = [self.means(key, seeds) for key in self.rows]
        return max(v[GOAL.key] for v in values if v[LIMIT.key] <= LIMIT.bound)


def read_table(path: Path) -> Table:
    """The landscape in a file, or in the folder that holds it.

    Raises
    ------
    ConfigError
        When there is none, or it is not whole.
    """
    path = path / FILE if path.is_dir() else path
    found: dict[Key, dict[int, dict[str, float]]] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key: Key = (int(row[PARAMETERS[0]]), int(row[PARAMETERS[1]]), float(row["lam"]))
                found.setdefault(key, {})[int(row["seed"])] = {
                    GOAL.key: float(row["goodput"]),
                    LIMIT.key: float(row["p99_tpot_s"]),
                }
    except (OSError, EOFError, KeyError, ValueError) as fault:
        raise ConfigError(f"{path} cannot be read as a landscape: {fault}") from fault
    seeds = tuple(sorted({seed for by_seed in found.values() for seed in by_seed}))
    levels = [sorted({cast(float, key[i]) for key in found}) for i in range(len(PARAMETERS))]
    whole = math.prod(len(values) for values in levels)
    if len(found) != whole or any(len(by_seed) != len(seeds) for by_seed in found.values()):
        raise ConfigError(f"{path}: {len(found)} of {whole} settings, or some without a seed")
    space = Space(
        tuple(
            Parameter(name, choices=tuple(values))
            for name, values in zip(PARAMETERS, levels, strict=True)
        )
    )
    return Table(space, found, seeds)


def search_in(
    table: Table,
    seeds: Sequence[int],
    sampler: SamplerName,
    seed: int,
    trials: int,
    told: Callable[[TrialRecord], None] = lambda _: None,
) -> tuple[Search[Mapping[str, float]], Ledger]:
    """A search of the tuner in the landscape, and where its trials are."""
    problem = table.landscape(seeds)
    storage = optuna.storages.InMemoryStorage()
    ledger = Ledger(storage, study_in(storage, "bench", [False]), table.space)
    proposer = Proposer(table.space, sampler, seed, 1, trials)
    return Search(problem, ledger, proposer, Course(trials), told), ledger
