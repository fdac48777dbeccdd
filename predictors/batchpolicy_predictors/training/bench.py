"""What predictors cost, and how good they are where they were trained and elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.errors import ConfigError
from batchpolicy.predictor import TRUTH, Arrivals, Predictor
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_predictors.gradient_boosting import GradientBoosting
from batchpolicy_predictors.histories import HistoryConditional, TenantHistory
from batchpolicy_predictors.model_file import write_model
from batchpolicy_predictors.plain import Constant
from batchpolicy_predictors.template_neighbours import TemplateNeighbours
from batchpolicy_predictors.tracked import Tracked
from batchpolicy_predictors.training import latency
from batchpolicy_predictors.training.examples import Examples
from batchpolicy_predictors.training.generated import generated
from batchpolicy_predictors.training.judging import (
    FIGURES,
    Quality,
    asked_in_turn,
    cells,
    quality,
    silences,
    tell,
)
from batchpolicy_predictors.training.reading import read_examples
from batchpolicy_predictors.training.tokens import Words
from batchpolicy_predictors.training.train import split_of, train

GENERATED = "generated"
FIFTHS, SPLITTINGS = 5, 4
"""Small data is split into so many parts, so many times: one way alone is luck."""
OBSERVED = 500
"""Answers after which coverage is judged."""
ONE_ROW_US, MANY_ROWS, MANY_ROWS_US = 200.0, 64, 1000.0
IN_DISTRIBUTION, AFTER_A_SHIFT = 0.03, 0.05
BOOSTED = "gradient-boosting"
_TEXTS = Path("data") / "traces" / "text"
_QUESTIONS = "arena_hard_v0.1_question.jsonl.gz"
_FILES = {
    "gpt-4": ("arena_hard_v0.1_gpt-4-0314.jsonl.gz", _QUESTIONS),
    "gpt-3.5": ("arena_hard_v0.1_gpt-3.5-turbo-0125.jsonl.gz", _QUESTIONS),
    "GPTeacher": ("gpteacher_codegen_instruct.json.gz", None),
}


Splitting = Sequence[tuple[Examples, Examples]]
"""Rows to fit to and rows to judge on, so often that each row is judged once at most."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Rows to fit to, and rows that come then; split in several ways, if there are few."""

    name: str
    splittings: Sequence[Splitting]
    shifted: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of each predictor on the rows of a stream."""

    rows: dict[str, Quality]
    """On all of them, those of all splittings together."""
    later: dict[str, Quality]
    """On those after the first ``OBSERVED``, if there are enough."""
    each: Sequence[dict[str, Quality]]
    """Of each splitting."""


class PredictorsBench(Bench):
    """Latency, quality and coverage of the predictors."""

    summary: ClassVar[str] = "cost of predictors of output lengths, and how good they are"

    def __init__(self) -> None:
        self._data: str | None = None

    @override
    def choose_workload(self, workload: str) -> None:
        self._data = workload

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        folder = None if self._data == GENERATED else _found(self._data)
        streams = list(_made_up(quick) if folder is None else _from_texts(folder, quick))
        measured: list[Measurement] = []
        with tempfile.TemporaryDirectory() as place:
            measured += (costs := list(_costs(Path(place), progress, quick)))[-1][1]
            tables = [_cost_table(costs)]
            for stream in streams:
                progress(f"training for {stream.name}")
                found = _judged(stream, Path(place), progress)
                measured += _figures(stream, found)
                tables.append(_quality_table(stream, found.rows))
        source = "made-up data, for which no goal was set" if folder is None else "texts"
        return BenchReport(
            f"Predictors of output lengths on {source}",
            measured,
            (
                "Each predictor is asked about one row after another and hears of each answer "
                "before the next; histories and neighbours were told the rows that the model was "
                "fitted to. Pinball loss and MAE in tokens; bucket: the median lies in the right "
                "one of 32, 64, ... 2,048.",
                *(
                    ["Name the folder of the texts with --workload to measure on them."]
                    if folder is None
                    else [
                        "Prompts are hashed words in place of token ids; the lengths of GPTeacher "
                        "are estimated by them, those of arena-hard are given. With 400 rows of "
                        "deliberately hard questions to learn from, tau is low on arena-hard."
                    ]
                ),
            ),
            tables,
        )


def _found(named: str | None) -> Path | None:
    """The folder of the texts: as it was named, or beside the checkout; None without one."""
    if named is not None:
        folder = Path(named)
        missing = [name for name, _ in _FILES.values() if not (folder / name).is_file()]
        if missing:
            raise ConfigError(
                f"--workload {named}: expected {GENERATED}, or a folder with {', '.join(missing)}."
            )
        return folder
    start = Path.cwd()
    for one in (start, *sorted(p for p in start.parent.glob("*") if p.is_dir())):
        if all((one / _TEXTS / name).is_file() for name, _ in _FILES.values()):
            return one / _TEXTS
    return None


def _made_up(quick: bool) -> Iterator[Stream]:
    rows = 700 if quick else 4000
    split = split_of(generated(rows, 1), "group", 0.5, 0)
    yield Stream("made-up prompts", [[split]], False)
    others = generated(rows, 2, shifted=True)
    yield Stream("other templates, shorter answers", [[(split[0], others)]], True)


def _from_texts(folder: Path, quick: bool) -> Iterator[Stream]:
    data: dict[str, Examples] = {}
    for name, (answers, questions) in _FILES.items():
        asks = None if questions is None else folder / questions
        data[name] = read_examples(folder / answers, asks, {}, Words())
    teacher = data["GPTeacher"]
    if quick:
        teacher = data["GPTeacher"] = teacher.take(np.arange(min(700, len(teacher))))
    yield Stream("GPTeacher, in distribution", [[split_of(teacher, "group", 0.5, 0)]], False)
    for name in ("gpt-4", "gpt-3.5"):
        splittings = list(_in_fifths(data[name], 1 if quick else SPLITTINGS))
        yield Stream(f"{name} on arena-hard, in distribution", splittings, False)
    gpt4 = data["gpt-4"]
    yield Stream("from gpt-4 to gpt-3.5, the same prompts", [[(gpt4, data["gpt-3.5"])]], True)
    yield Stream("from gpt-4 on arena-hard to GPTeacher", [[(gpt4, teacher)]], True)


def _in_fifths(rows: Examples, times: int) -> Iterator[Splitting]:
    """Each fifth of the groups held out of the rest once, for so many ways to split them."""
    _, group = np.unique(rows.group_hashes(), return_inverse=True)
    for seed in range(times):
        fifth = np.random.default_rng(seed).permutation(group.max() + 1)[group] % FIFTHS
        held = [fifth == k for k in range(FIFTHS)]
        yield [(rows.take(np.flatnonzero(~k)), rows.take(np.flatnonzero(k))) for k in held]


def _kinds(typical: int, path: Path) -> Mapping[str, Callable[[], Predictor]]:
    return {
        BOOSTED: lambda: GradientBoosting(model=path),
        "gradient-boosting, without ids": lambda: GradientBoosting(model=path),
        "gradient-boosting, not corrected": lambda: GradientBoosting(model=path, online=False),
        "tracked gradient-boosting": lambda: Tracked(inner=GradientBoosting(model=path)),
        "template-neighbours": TemplateNeighbours,
        "tenant-history": TenantHistory,
        "history-conditional": HistoryConditional,
        "constant": lambda: Constant(output_tokens=typical),
    }


def _judged(stream: Stream, place: Path, progress: Progress) -> Found:
    each = [_asked(stream.name, splitting, place, progress) for splitting in stream.splittings]
    truths = [truth for _, truth in each]
    said = {name: np.concatenate([one[name] for one, _ in each]) for name in each[0][0]}
    truth = np.concatenate(truths)
    later: dict[str, Quality] = {}
    if len(stream.splittings) == 1 == len(stream.splittings[0]) and len(truth) > OBSERVED + 100:
        late = slice(OBSERVED, None)
        later = {name: quality(one[late], truth[late]) for name, one in said.items()}
    return Found(
        {name: quality(one, truth) for name, one in said.items()},
        later,
        [{name: quality(one, truth) for name, one in parts.items()} for parts, truth in each],
    )


def _asked(
    stream: str, splitting: Splitting, place: Path, progress: Progress
) -> tuple[dict[str, FloatArray], IntArray]:
    """What each predictor says of the rows of a splitting, and their lengths."""
    said: dict[str, list[FloatArray]] = {}
    for number, (fitted, then) in enumerate(splitting):
        path = place / f"{number}.bp"
        about = {"by": "group", "seed": 0}
        write_model(train(fitted, fitted, about, "", lambda _: None), path)
        typical = max(1, round(float(np.median(fitted.output_tokens))))
        for name, make in _kinds(typical, path).items():
            progress(f"{stream}: {name}")
            predictor, rows = make(), then
            tell(predictor.inner if isinstance(predictor, Tracked) else predictor, fitted)
            if name.endswith("without ids"):
                rows = replace(then, arrivals=replace(then.arrivals, prompt_ids=None))
            told = not name.endswith("not corrected")
            said.setdefault(name, []).append(asked_in_turn(predictor, rows, told=told))
    together = {name: np.concatenate(parts) for name, parts in said.items()}
    return together, np.concatenate([then.output_tokens for _, then in splitting])


def _figures(stream: Stream, found: Found) -> Iterator[Measurement]:
    ours, history, later = found.rows[BOOSTED], found.rows["tenant-history"], found.later
    if not stream.shifted:
        for level, figure in ((".5", "pinball_50"), (".9", "pinball_90")):
            mine, other = getattr(ours, figure), getattr(history, figure)
            ratios = [
                getattr(one[BOOSTED], figure) / getattr(one["tenant-history"], figure)
                for one in found.each
            ]
            spread = f"; {min(ratios):.3f}x to {max(ratios):.3f}x of {len(ratios)} splittings"
            yield Measurement(
                f"{stream.name}: pinball at {level} over that of tenant-history",
                f"{mine / other:.3f}x ({other:.1f} to {mine:.1f} tokens, {ours.rows:,} rows"
                f"{spread if len(ratios) > 1 else ''})",
                "< 1x",
                mine < other,
            )
    if BOOSTED not in later and not stream.shifted:
        return
    most = AFTER_A_SHIFT if stream.shifted else IN_DISTRIBUTION
    then = later.get(BOOSTED, ours)
    covered = then.coverage_90
    when = f"after {OBSERVED} answers" if BOOSTED in later else "from the first answer on"
    yield Measurement(
        f"{stream.name}: within the .9 quantile {when}",
        f"{covered:.1%} of {then.rows:,}",
        f"90% +- {100 * most:.0f} points",
        abs(covered - 0.9) <= most,
    )


def _quality_table(stream: Stream, judged: Mapping[str, Quality]) -> ResultTable:
    rows = [(name, *cells(one)) for name, one in judged.items()]
    parts = [part for splitting in stream.splittings for part in splitting]
    fitted, then = parts[0]
    times = f"{len(parts)} times " if len(parts) > 1 else ""
    note = f"{times}{len(fitted):,} rows of {fitted.name} fitted to, {len(then):,} judged."
    if times:
        note += " What a part holds the rest lacks: a constant has tau below 0."
    note = " ".join([note, *silences(judged)])
    return ResultTable(stream.name, ("predictor", *FIGURES), rows, note)


_Cost = tuple[tuple[str, ...], list[Measurement]]


def _costs(place: Path, progress: Progress, quick: bool) -> Iterator[_Cost]:
    """A row of the table for each kind, and the figures of the one that has goals, last."""
    path = place / "largest.bp"
    latency.largest_model(path)
    parameters = {
        "constant": {"output_tokens": 300},
        BOOSTED: {"model": str(path)},
        "tracked": {"inner": {"name": BOOSTED, "model": str(path)}},
    }
    names = registry.names(registry.PREDICTORS)
    for name in sorted(names, key=lambda one: (one == BOOSTED, one)):
        if name not in parameters and not _needs_nothing(name):
            continue
        progress(f"timing {name}")
        made = registry.predictor_class(name).model_validate(parameters.get(name, {}))
        truth = TRUTH in made.requires
        latency.used(made, truth=truth)
        one = [latency.batch(1, k, truth=truth) for k in range(50)]
        many = [latency.batch(MANY_ROWS, k, truth=truth) for k in range(10)]
        calls, rounds = (100, 2) if quick else (1000, 5)
        single = latency.cost_us(made.predict, one, calls, rounds)
        batched = latency.cost_us(made.predict, many, calls // 5, rounds)
        heard = latency.cost_us(_telling(made), one, calls // 2, rounds)
        shown = [f"{part:,.0f}" for cost in (single, batched, heard) for part in cost]
        figures: list[Measurement] = []
        if name == BOOSTED:
            for rows, (middle, high), most in (
                (1, single, ONE_ROW_US),
                (MANY_ROWS, batched, MANY_ROWS_US),
            ):
                figures.append(
                    Measurement(
                        f"{BOOSTED}: {rows} row{'s' * (rows > 1)}, p99",
                        f"{high:,.0f} us (p50 {middle:,.0f})",
                        f"<= {most:,.0f} us",
                        high <= most,
                    )
                )
        yield (name, *shown), figures


def _telling(predictor: Predictor) -> Callable[[Arrivals], object]:
    outputs = np.array([300])
    return lambda batch: predictor.observe(batch, outputs)


def _needs_nothing(name: str) -> bool:
    fields = registry.predictor_class(name).model_fields.values()
    return not any(field.is_required() for field in fields)


def _cost_table(costs: list[_Cost]) -> ResultTable:
    heads = ("one row", f"{MANY_ROWS} rows", "an answer")
    columns = [f"{head}, p{part}" for head in heads for part in (50, 99)]
    return ResultTable(
        "Microseconds",
        ("predictor", *columns),
        [row for row, _ in costs],
        "Time of one thread, in-process, after 1,000 answers; median of 5 rounds of 1,000 calls, "
        "or of 200 and 500; "
        f"prompts of {latency.PROMPT_TOKENS} token ids; gradient-boosting with as many trees "
        "as training ever makes. An answer: hearing of one.",
    )
