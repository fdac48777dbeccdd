"""The tuner against plain Optuna on a tabulated landscape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.landscape_file import FILE, GOAL, LIMIT, read_table
from batchpolicy_tuning.tune.race import MOST, SHARE, compared, raced, rows
from batchpolicy_tuning.tune.rotated import SEARCHED, held_out
from batchpolicy_tuning.tune.sampler import SamplerName

STUDIES: Mapping[SamplerName, int] = {"tpe": 100, "random": 100, "gp": 20}
PLACES = ("shared/data/tuning", "../shared/data/tuning")


class TunerBench(Bench):
    """How many trials the tuner and plain Optuna need, and what becomes of winners held out."""

    summary: ClassVar[str] = "trials to 99% of the constrained optimum, against plain Optuna"

    def __init__(self) -> None:
        self._data: Path | None = None

    @override
    def choose_data(self, data: Path) -> None:
        self._data = data

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        table = read_table(self._data or _found())
        seen = table.seeds[:SEARCHED]
        measured: list[Measurement] = []
        tables: list[Sequence[str]] = []
        for sampler, studies in STUDIES.items():
            if sampler == "gp" and find_spec("torch") is None:
                measured.append(
                    Measurement("gp", "not run", reason="torch is not installed; it is optional")
                )
                continue
            count = max(studies // 20, 3) if quick else studies
            ours, plain = raced(table, seen, sampler, count, progress)
            measured += compared(sampler, ours, plain)
            tables += rows(sampler, ours, plain)
        judged = held_out(table, 1 if quick else 5, progress)
        measured.append(judged.measurement())
        return BenchReport(
            f"trials to {SHARE:.0%} of the constrained optimum",
            measured,
            (
                f"{len(table.rows)} settings; {GOAL.key} over workload seeds "
                f"{', '.join(map(str, seen))} with {LIMIT.text}, the optimum being "
                f"{table.optimum(seen):.4f}. Both sides share seeds, the coding of choices as "
                f"places and the limit as a constraint, with Optuna {version('optuna')}; the "
                f"tuner's baseline trial is not counted. A search ends after {MOST} trials.",
                "Plain Optuna repeats settings, and each repetition counts, as it would be run.",
            ),
            (
                ResultTable(
                    "Trials to the goal, by share of the studies that need no more",
                    ("search", "P10", "P25", "median", "P75", "P90", "most", "repeated"),
                    tables,
                ),
                judged.table(),
            ),
        )


def _found() -> Path:
    for place in PLACES:
        if (Path(place) / FILE).is_file():
            return Path(place)
    raise ConfigError(f"{FILE} is not in {' or '.join(PLACES)}; name its folder with --data")
