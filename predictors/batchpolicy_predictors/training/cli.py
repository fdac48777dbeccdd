"""The ``predictor`` command."""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.table import Table
from rich.text import Text

from batchpolicy.cli import console, emit_json
from batchpolicy.errors import ConfigError
from batchpolicy_predictors.model_file import read_model, write_model
from batchpolicy_predictors.training import evaluation, page
from batchpolicy_predictors.training.examples import Examples
from batchpolicy_predictors.training.fit import Progress
from batchpolicy_predictors.training.judging import FIGURES, cells
from batchpolicy_predictors.training.reading import read_examples
from batchpolicy_predictors.training.tokens import STAND_IN, ModelTokens, Tokens, Words
from batchpolicy_predictors.training.train import Split, split_of, train

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Train predictors of output lengths on prompts and answers, and judge them.",
)

Data = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Answers: JSON lines, a JSON list or CSV, plain or .gz. arena-hard, GPTeacher, our "
        "workloads, logs of vLLM, ServeGen and Azure traces are known.",
        show_default=False,
    ),
]
Questions = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Prompts, where they stand in another file.")
]
TextField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Where the prompt's text is, as turns.0.text.")
]
LengthField = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="Tokens of the answer, or its text, which is counted."),
]
GroupField = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="What a prompt's rows share; also joins the questions."),
]
TimeField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Arrival in seconds; orders the rows.")
]
TenantField = Annotated[str | None, typer.Option(metavar="FIELD", help="Name of the tenant.")]
IdsField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Token ids of the prompt, as recorded.")
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="tokenizer.json of the model that is served; without it hashed words stand in, "
        "which no engine knows.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@app.command("train")
def train_command(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.bp", help="The model's file.")],
    questions: Questions = None,
    text_field: TextField = None,
    length_field: LengthField = None,
    group_field: GroupField = None,
    time_field: TimeField = None,
    tenant_field: TenantField = None,
    ids_field: IdsField = None,
    tokenizer: Tokenizer = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="auto|group|time",
            help="What is held out to judge on: whole groups, or the last part of the time; auto "
            "is time where there are times.",
        ),
    ] = "auto",
    held_out: Annotated[
        str, typer.Option(metavar="PERCENT", help="Part of the rows that is held out.")
    ] = "20%",
    licence: Annotated[str, typer.Option(help="Of the data, for the model's card.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is drawn.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model of how long answers are, and judge it on rows that it has not seen.

    Example: batchpolicy predictor train --data answers.jsonl.gz --licence MIT -o mine.bp
    """
    chosen = _split(split)
    share = _percent("--held-out", held_out)
    if out.suffix != ".bp":
        raise ConfigError(f"--out {out}: a model's file ends in .bp")
    _check_writable(out)
    say = _progress(quiet)
    say(f"reading {data}")
    fields = (text_field, length_field, group_field, time_field, tenant_field, ids_field)
    rows = _examples(data, questions, fields, tokenizer)
    fitted, judged = split_of(rows, chosen, share, seed)
    by_time = chosen == "time" or (chosen == "auto" and rows.time_s is not None)
    about = {"by": "time" if by_time else "group", "held_out": share, "seed": seed}
    model = train(rows, fitted, about, licence, say)
    # Judged as it will be read, and put in place only then.
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.bp"
        write_model(model, trial)
        say(f"judging on {len(judged):,} rows that were held out")
        found = evaluation.judged_after_training(trial, fitted, judged)
    metrics = {name: one.document() for name, one in found.by_predictor.items()}
    model = replace(model, card={**model.card, "metrics": metrics})
    write_model(model, out)
    say(f"wrote {out}")
    if as_json:
        card = {key: value for key, value in read_model(out).card.items() if key != "arrays"}
        emit_json({"model": str(out), "card": card})
        return
    _show(found)
    terminal = console()
    for note in (*_notes(rows), _serve_with(out)):
        terminal.print(Text(note, style="dim"))


@app.command("eval")
def eval_command(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model file, a predictor's name, or module:Class."),
    ],
    data: Data,
    questions: Questions = None,
    text_field: TextField = None,
    length_field: LengthField = None,
    group_field: GroupField = None,
    time_field: TimeField = None,
    tenant_field: TenantField = None,
    ids_field: IdsField = None,
    tokenizer: Tokenizer = None,
    html: Annotated[
        Path | None, typer.Option(help="File for a calibration plot, to be opened in a browser.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge a model beside a constant and the tenant's history, on any file of answers.

    Example: batchpolicy predictor eval mine.bp --data others.jsonl.gz
    """
    is_file = model.endswith(".bp") or (":" not in model and Path(model).is_file())
    if html is not None:
        page.plotting()
        _check_writable(html)
    made = None if is_file else evaluation.made_by_name(model)
    if made is None:
        read_model(Path(model))
    say = _progress(quiet)
    say(f"reading {data}")
    fields = (text_field, length_field, group_field, time_field, tenant_field, ids_field)
    rows = _examples(data, questions, fields, tokenizer)
    if made is None:
        found = evaluation.judged_model(Path(model), rows, say)
    else:
        found = evaluation.judged_by_name(model, made, rows, say)
    if as_json:
        emit_json({"model": model, "data": rows.name, "judged": [one.document() for one in found]})
    else:
        for one in found:
            _show(one)
        for note in _notes(rows):
            console().print(Text(note, style="dim"))
    if html is not None:
        text = page.page(f"{Path(model).name} on {rows.name}", found, FIGURES, cells)
        try:
            html.write_text(text, encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"{html}: cannot be written: {e.strerror}") from e
        say(f"wrote {html}")


@app.command("show")
def show_command(
    model: Annotated[Path, typer.Argument(metavar="FILE.bp", help="A model's file.")],
) -> None:
    """Print the card of a model: its data, versions, features and figures."""
    emit_json({key: value for key, value in read_model(model).card.items() if key != "arrays"})


def _examples(
    data: Path,
    questions: Path | None,
    fields: tuple[str | None, ...],
    tokenizer: Path | None,
) -> Examples:
    tokens: Tokens = Words() if tokenizer is None else ModelTokens(tokenizer)
    names = ("text", "length", "group", "time", "tenant", "prompt_ids")
    return read_examples(data, questions, dict(zip(names, fields, strict=True)), tokens)


def _split(text: str) -> Split:
    for known in get_args(Split):
        if text == known:
            return cast(Split, known)
    raise ConfigError(f"--split: {text!r} is none of auto, group, time")


def _percent(option: str, text: str) -> float:
    try:
        percent = float(text.removesuffix("%")) if text.endswith("%") else math.nan
    except ValueError:
        percent = math.nan
    if not 1.0 <= percent <= 90.0:
        raise ConfigError(f"{option}: {text!r} is no percentage from 1% to 90%; write 20%")
    return percent / 100.0


def _check_writable(path: Path) -> None:
    """Refuse a place where nothing can be written, before any work."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file.")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConfigError(f"{path}: no folder {str(folder)!r}; make it first.")
    try:
        # Permission is not enough, as in /proc: a file is made, and is gone again.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}."):
            pass
    except OSError as e:
        raise ConfigError(f"{path}: {str(folder)!r} takes no file: {e.strerror}.") from e


def _progress(quiet: bool) -> Progress:
    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    return say


def _serve_with(model: Path) -> str:
    return (
        "In a policy file: predictor: {name: tracked, inner: {name: gradient-boosting, "
        f"model: {model}}}}}"
    )


def _notes(rows: Examples) -> list[str]:
    stands_in = rows.arrivals.prompt_ids is not None and rows.arrivals.id_space == STAND_IN
    served = (
        "No engine knows hashed words: a model trained on them serves as the row without token "
        "ids says. --tokenizer tokenizer.json, or recorded ids, make one that reads prompts."
    )
    left_out = [f"{rows.left_out:,} rows without an answer were left out."]
    return [
        f"Prompts: {rows.prompts}. Lengths: {rows.lengths}.",
        *([served] if stands_in else []),
        *(left_out if rows.left_out else []),
        "Histories and models hear of each answer before the next row. Pinball and MAE are in "
        "tokens; bucket: the median is in the right one of 32, 64, ... 2,048.",
    ]


def _show(judged: evaluation.Judged) -> None:
    out = console()
    out.print(Text(f"{judged.title}: {judged.rows:,} rows", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for name in FIGURES:
        table.add_column(name, justify="right")
    for name, one in judged.by_predictor.items():
        table.add_row(name, *cells(one))
    out.print(table)
    if judged.note:
        out.print(Text(judged.note, style="dim"))
    out.print()
