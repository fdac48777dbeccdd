"""The ``conformance`` command."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from batchpolicy import registry
from batchpolicy.cli import FAULT
from batchpolicy.engine import Engine
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy_tuning import output
from batchpolicy_tuning.conformance.comparison import Compare, Compared, light_for
from batchpolicy_tuning.conformance.problem import Problem
from batchpolicy_tuning.conformance.report import document, lines
from batchpolicy_tuning.conformance.workloads import random_problem
from batchpolicy_tuning.pool import Workers, interrupted_once

MOST_PROCESSES = 8
_MOST_RANDOM = 100_000

app = typer.Typer(add_completion=False)


@app.command()
def conformance(
    engine: Annotated[str, typer.Option(help="Real engine that light is held to.")] = "vllm",
    random: Annotated[
        int, typer.Option(min=0, max=_MOST_RANDOM, help="Random workloads; 0 for none.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Number of the first random workload.")] = 0,
    cases: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Cases beside them, a file or a folder; repeatable."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Processes; by default one per core, up to 8."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File for the results.")] = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No progress, and nothing else when all is equal."),
    ] = False,
) -> None:
    """Hold the engine light to the step plans of a real one: exit 1 where they differ."""
    if json is not None:
        output.check_writable(json)
    problems: list[Callable[[], Problem]] = [
        functools.partial(random_problem, seed + k) for k in range(random)
    ]
    if cases:
        from batchpolicy_tuning.conformance.from_cases import problems_of

        problems += [problem.itself for problem in problems_of(cases)]
    if not problems:
        raise ConfigError("there is nothing to compare: give --random N, or --cases PATH.")
    processes = min(jobs or len(os.sched_getaffinity(0)), MOST_PROCESSES, len(problems))
    with interrupted_once():
        with Workers(functools.partial(registry.engine, engine), processes) as workers:
            versions = [light_for(engine).version, workers.one(_version)]
            compared = _compared(workers, problems, quiet)
        if json is not None:
            output.write_json(document(compared, engine, versions, seed), json)
        failed = any(one.difference is not None for one in compared)
        nothing = all(one.left_out for one in compared)
        if failed or nothing or not quiet:
            for line in lines(compared, engine, " against ".join(versions)):
                print(line)
            sys.stdout.flush()
    if failed:
        raise typer.Exit(FAULT)
    if nothing:
        raise BatchPolicyError("no workload could be compared; the lines above say why.")


def _version(engine: Engine, /) -> str:
    return engine.version


def _compared(
    workers: Workers, problems: list[Callable[[], Problem]], quiet: bool
) -> list[Compared]:
    """Results in the order of the problems; how far it is, on stderr."""
    ended: dict[int, Compared] = {}
    total = len(problems)
    each: Iterable[tuple[int, Compared]] = workers.each([Compare(make) for make in problems])
    console = Console(stderr=True)
    if console.is_terminal and not quiet:
        each = track(each, "comparing steps", total=total, console=console)
    lines_too = not quiet and not console.is_terminal
    if lines_too:
        print(f"comparing steps on {total} workloads ...", file=sys.stderr, flush=True)
    for place, one in each:
        before = 10 * len(ended) // total
        ended[place] = one
        if lines_too and total >= 10 and 10 * len(ended) // total > before:
            unlike = sum(found.difference is not None for found in ended.values())
            said = f"{unlike} differ" if unlike else "all equal"
            print(f"{len(ended)} of {total}: {said}", file=sys.stderr, flush=True)
    return [ended[place] for place in range(total)]
