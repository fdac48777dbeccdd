"""``tune`` and what goes with it: ``worker``, ``report``, ``regimes`` and ``schema``."""

from __future__ import annotations

import json as json_lines
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from typing_extensions import override

from batchpolicy.cli import console
from batchpolicy.errors import ConfigError, Interrupted
from batchpolicy_tuning import output
from batchpolicy_tuning.pool import interrupted_once
from batchpolicy_tuning.tune import regimes, run
from batchpolicy_tuning.tune.cli.bars import watching
from batchpolicy_tuning.tune.cli.terminal import show
from batchpolicy_tuning.tune.report import read_standing
from batchpolicy_tuning.tune.result import FILE, StudyResult
from batchpolicy_tuning.tune.result_files import PAGE
from batchpolicy_tuning.tune.storage import answering
from batchpolicy_tuning.tune.study import read_study, with_search
from batchpolicy_tuning.tune.study_file import study_schema

JOURNAL = "journal.log"
FOLDER = Path("tuned")


class _StudyFirst(typer.core.TyperGroup):
    """``tune FILE`` is ``tune run FILE``."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_StudyFirst,
    add_completion=False,
    no_args_is_help=True,
    help="Search policies and limits that meet targets: batchpolicy tune STUDY.yaml",
)

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="Study file.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for results; by default tuned/NAME.", show_default=False),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|URL",
        help="Journal file or postgresql://... for the trials; by default a journal in --out.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@app.command("run")
def run_study(
    study: StudyPath,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Trials in all, in place of the study's.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="In place of the study's.", show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes on this machine.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the trials that are there.")
    ] = False,
    changed: Annotated[
        bool,
        typer.Option(
            "--changed",
            help="Resume although the study file has changed, where trials still count.",
        ),
    ] = False,
    out: Out = None,
    storage: Storage = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print study.json in place of tables.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Search settings that meet the study's targets.

    Exit codes: 0 a winner, or the baseline is as good; 3 nothing feasible; 5 inconclusive.
    """
    read = with_search(read_study(study), trials=trials, seed=seed)
    folder = FOLDER / read.name if out is None else out
    _make(folder)
    asked = run.Asked(
        study=read,
        folder=folder,
        place=storage or str(folder / JOURNAL),
        resume=resume,
        changed=changed,
        jobs=jobs,
    )
    try:
        with (
            answering(asked.place),
            interrupted_once(),
            watching(read.goals, quiet) as watcher,
        ):
            result = run.tune(asked, watcher)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; go on with: batchpolicy tune {study} --resume"
            + ("" if out is None else f" --out {out}")
            + ("" if storage is None else " --storage ...")
        ) from None
    draw = _page()
    # Whoever reads stdout may leave; a page that finds no place costs no table either.
    try:
        if draw is not None:
            output.write_whole(draw(result), folder / PAGE)
    finally:
        if as_json:
            print(result.model_dump_json(indent=1))
        else:
            show(result, console())
            _tell(f"\nAll of it: {folder / FILE}")
    if draw is not None and not as_json:
        _tell(f"To look at: {folder / PAGE}")
    raise typer.Exit(result.exit_code)


@app.command("worker")
def worker(
    study: StudyPath, out: Out = None, storage: Storage = None, quiet: Quiet = False
) -> None:
    """Help with a study that was started elsewhere, from another terminal or machine.

    It takes trials from the same storage until there are enough; the first command waits for
    them and runs the finalists.
    """
    read = read_study(study)
    folder = FOLDER / read.name if out is None else out
    place = storage or str(folder / JOURNAL)
    if storage is None and not Path(place).is_file():
        raise ConfigError(
            f"no journal {place}; name the --out or --storage of the study that is to be helped"
        )
    try:
        with answering(place), interrupted_once(), watching(read.goals, quiet) as watcher:
            count = run.work(read, place, watcher)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; its trial was given back") from None
    print(f"{count} trials of {read.name} run here")


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a study's results.")],
    page: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="By default DIR/report.html.",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Where the trials of a study are that has not ended, if not in DIR.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what is shown as JSON; a page only with -o.")
    ] = False,
) -> None:
    """Show what a study found, as tables and as one HTML file; also while it runs."""
    result = read_standing(folder, storage)
    if page is None and not as_json:
        page = (folder if folder.is_dir() else folder.parent) / PAGE
    if page is not None:
        output.check_apart([page], [str(folder), str(folder / FILE)])
        draw = _page()
        if draw is None:
            raise ConfigError(
                "the page needs Jinja2 and plotly, which are not installed; "
                "pip install 'batchpolicy[tuning]', or ask for --json"
            )
        output.write_whole(draw(result), page)
    if as_json:
        print(result.model_dump_json(indent=1))
        return
    show(result, console())
    _tell(f"\nTo look at: {page}")


@app.command("regimes")
def put_together(
    studies: Annotated[
        list[str],
        typer.Argument(metavar="NAME=DIR...", help="Rows and results, from low load to high."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Policy file to write.")
    ],
    safe: Annotated[
        str | None,
        typer.Option(help="Row to go back to; by default the last.", show_default=False),
    ] = None,
) -> None:
    """Put the winners of studies at several loads into one policy file.

    It changes policy and limits with the load; see docs/tuning.md.
    """
    given = [text.partition("=") for text in studies]
    if any(not (name and folder) for name, _, folder in given):
        raise ConfigError(
            f"studies are {' '.join(studies)!r}; expected NAME=DIR for each, such as "
            "low=tuned/low peak=tuned/peak"
        )
    won = [regimes.read_won(name, Path(folder)) for name, _, folder in given]
    joined = regimes.join(won, safe or won[-1].name)
    regimes.write_joined(joined, out)
    for line in joined.remarks()[1:]:
        print(line)
    print(f"Policy file: {out}")


@app.command("schema")
def print_schema() -> None:
    """JSON schema of study files, for editors."""
    print(json_lines.dumps(study_schema(), indent=2))


def _page() -> Callable[[StudyResult], str] | None:
    """What makes the page; None where what it draws with is not installed."""
    try:
        from batchpolicy_tuning.tune.page import page
    except ModuleNotFoundError as missing:
        if missing.name not in ("jinja2", "markupsafe", "plotly"):
            raise
        return None
    return page


def _tell(text: str) -> None:
    console().print(text, markup=False, soft_wrap=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ConfigError(f"--out {folder}: cannot be made: {fault.strerror}.") from fault
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--out {folder}: takes no files.")
