"""The ``bench`` command."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from batchpolicy import registry
from batchpolicy.cli.output import Json, console, emit_json
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.results_page import check_page, write_section


def bench(
    name: Annotated[
        str | None, typer.Argument(help="A bench; without one they are listed.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Engine to measure, where the bench leaves a choice.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="Workload or trace to measure on, where the bench leaves a choice."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="File or folder of the bench's data, where it reads some.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only see that it works; the figures mean little.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(help="Markdown page to keep the results on, one for all benches."),
    ] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Measure something side by side with what it is held against."""
    if name is None:
        _list_benches(as_json)
        return
    if write is not None and quick:
        raise ConfigError("figures of a quick run are not for keeping: give --quick or --write.")
    if write is not None and not write.parent.is_dir():
        raise ConfigError(f"--write {write}: there is no folder {str(write.parent)!r}.")
    chosen = registry.bench_class(name)()
    if engine is not None:
        chosen.choose_engine(engine)
    if workload is not None:
        chosen.choose_workload(workload)
    if data is not None:
        chosen.choose_data(data)

    if write is not None:
        check_page(write, name)

    def progress(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    report = chosen.run(progress, quick=quick)
    if write is not None:
        options = {"--engine": engine, "--workload": workload, "--data": data}
        given = [f" {option} {value}" for option, value in options.items() if value is not None]
        write_section(write, name, f"batchpolicy bench {name}{''.join(given)}", report)
    if as_json:
        emit_json({"bench": name, "quick": quick, **asdict(report)})
        return
    out = console()
    out.print(report.title, style="bold", markup=False)
    table = Table("what", "measured", "goal", "", "", box=None, pad_edge=False)
    for one in report.measurements:
        met = {None: "", True: "met", False: "not met"}[one.met]
        table.add_row(one.what, one.value, one.goal, met, one.reason)
    out.print(table, markup=False)
    for part in report.tables:
        out.print(f"\n{part.title}", markup=False)
        rows = Table(*part.columns, box=None, pad_edge=False)
        for row in part.rows:
            rows.add_row(*row)
        out.print(rows, markup=False)
        if part.note:
            out.print(part.note, markup=False)
    for note in report.notes:
        out.print(note, markup=False)
    if quick:
        out.print("A quick run: the figures mean little.", markup=False)


def _list_benches(as_json: bool) -> None:
    found: list[dict[str, str]] = []
    for name in registry.names(registry.BENCHES):
        try:
            found.append({"name": name, "summary": registry.bench_class(name).summary})
        except BatchPolicyError as e:
            found.append({"name": name, "error": str(e)})
    if as_json:
        emit_json(found)
        return
    table = Table("bench", "what it measures", box=None, pad_edge=False)
    for one in found:
        table.add_row(one["name"], one.get("summary") or f"cannot be run here: {one['error']}")
    console().print(table, markup=False)
