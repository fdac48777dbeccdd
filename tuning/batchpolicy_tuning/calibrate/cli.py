"""The ``calibrate`` command."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from batchpolicy import registry
from batchpolicy.cli import INVALID, console, emit_json
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.profiles import MetricErrors, load_profile
from batchpolicy_tuning import output
from batchpolicy_tuning.calibrate.accuracy import NAMES
from batchpolicy_tuning.calibrate.fit import Replayed, fit
from batchpolicy_tuning.calibrate.result import Result, calibrated_profile, judged, parts
from batchpolicy_tuning.calibrate.run_log import RunFacts, metadata_beside, read_facts, read_run
from batchpolicy_tuning.calibrate.setting import Asked, setting
from batchpolicy_tuning.fit_profile import to_json
from batchpolicy_tuning.pool import interrupted_once

app = typer.Typer(add_completion=False)


@app.command()
def calibrate(
    run: Annotated[
        Path,
        typer.Option(
            "--from",
            metavar="RUN.jsonl",
            help="Requests of a real run with their times, plain or .gz.",
            show_default=False,
        ),
    ],
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Step cost to start from: a profile, or path.py:function.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the calibrated profile, .json.")
    ] = None,
    meta: Annotated[
        Path | None,
        typer.Option(help="Metadata of the run; else X_meta.json beside X_requests.jsonl."),
    ] = None,
    fit_on: Annotated[
        int | None,
        typer.Option(min=1, help="Requests that the fit sees, from the first; else a third."),
    ] = None,
    limit: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="Largest error of the mean E2E on the other requests; beyond it nothing is "
            "written, exit 5.",
        ),
    ] = "10%",
    engine: Annotated[str, typer.Option(help="Engine that replays the run.")] = "light",
    kv_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Tokens that the KV cache held; else the run's."),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Requests that ran at once; else the run's.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a step; else the run's.")
    ] = None,
    prefix_cache: Annotated[
        bool | None,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Whether the engine reused prefixes; else the run's, else on.",
            show_default=False,
        ),
    ] = None,
    async_scheduling: Annotated[
        bool, typer.Option(help="Plan each step before the results of the last.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Fit a profile's scale and per-step overhead to a real run, and judge it on the rest.

    Example: batchpolicy calibrate --from requests.jsonl --profile h100-llama-3.1-8b -o mine.json
    """

    def progress(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    most = parse_limit(limit)
    if out is not None:
        if out.suffix != ".json":
            raise ConfigError(f"--out {out}: a profile's file ends in .json")
        output.check_writable(out)
    base = load_profile(profile)
    real = read_run(run)
    told = meta or metadata_beside(run)
    facts = RunFacts() if told is None else read_facts(told)
    first = parts(real, fit_on)
    asked = Asked(
        kv_tokens=kv_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_cache=prefix_cache,
        async_scheduling=async_scheduling,
    )
    under = setting(asked, facts, base)
    base.is_extended(max(r.prompt_tokens + r.output_tokens for r in real.workload.requests))
    replayed = Replayed(registry.engine(engine), real.workload, under.limits)
    with interrupted_once():
        found = fit(replayed, base.cost, real.latencies, first, progress)
        result = judged(real, facts, base, under, replayed, found, first)
        error = result.held_out["e2el"].mean
        fits = abs(error) <= most
        if as_json:
            emit_json({**result.document(), "limit": most, "within_limit": fits})
        else:
            _show(result)
        if not fits:
            sys.stdout.flush()
            written = "" if out is None else f"; {out} is not written"
            print(
                f"calibration refused: mean E2E is off by {error:+.1%} on requests that the fit "
                f"did not see, the limit is {most:.1%}{written}",
                file=sys.stderr,
            )
            raise typer.Exit(INVALID)
        if out is not None:
            made = calibrated_profile(result, out.stem)
            try:
                output.write_whole(to_json(made), out)
            except OSError as e:
                raise BatchPolicyError(f"{out}: cannot be written: {e.strerror}") from e
            progress(f"wrote {out}")
        else:
            progress("not written; -o FILE.json writes the calibrated profile")


def parse_limit(text: str) -> float:
    """The part that ``10%`` is.

    Raises
    ------
    ConfigError
        When it is no percentage from 0 to 1000.
    """
    try:
        percent = float(text.removesuffix("%")) if text.endswith("%") else math.nan
    except ValueError:
        percent = math.nan
    if not 0.0 <= percent <= 1000.0:
        raise ConfigError(f"--limit: {text!r} is no percentage; write 10%")
    return percent / 100.0


def _show(result: Result) -> None:
    out = console()
    first, count = result.first, result.first + result.others
    title = (
        f"{result.base.name} calibrated to requests 1 to {first} of {result.run.path.name}: "
        f"scale {result.found.scale:.4f}, {result.found.overhead_s * 1000:.3f} ms a step"
    )
    out.print(Text(title, style="bold"))
    legend = (
        f"Errors on requests {first + 1} to {count}, as shares of what was measured; request: "
        "mean over requests, without sign."
    )
    out.print(Text(legend, style="dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for name in ("measured", *2 * ("mean", "p50", "p95", "request")):
        table.add_column(name, justify="right")
    kinds = ("uncalibrated", "", "", "", "calibrated", "", "", "")
    table.add_row("", "mean", *(Text(kind, style="dim") for kind in kinds))
    for name, error in result.held_out.items():
        measured = f"{result.measured_s[name] * 1000:,.1f} ms"
        table.add_row(NAMES[name], measured, *_cells(result.uncalibrated[name]), *_cells(error))
    out.print(table)
    for note in result.notes:
        out.print(Text(note, style="dim"))


def _cells(error: MetricErrors) -> list[str]:
    signed = (f"{share:+.1%}" for share in (error.mean, error.p50, error.p95))
    return [*signed, f"{error.mape:.1%}"]
