"""The ``cases`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from batchpolicy import registry
from batchpolicy.cli import FAULT, console
from batchpolicy.config import config_named
from batchpolicy_tuning import output
from batchpolicy_tuning.cases.expected import differences, read_expected
from batchpolicy_tuning.cases.judge import judge
from batchpolicy_tuning.cases.outcome import Outcome, Verdict, totals
from batchpolicy_tuning.cases.reading import read_cases

_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "red", Verdict.NOT_APPLICABLE: "dim"}

app = typer.Typer(add_completion=False)


@app.command()
def cases(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Files of cases, or folders of them.", show_default=False
        ),
    ],
    engine: Annotated[str, typer.Option(help="Engine to run them on.")] = "light",
    policy: Annotated[
        str, typer.Option(metavar="FILE", help="Policy file, name or path.py:Class.")
    ] = "benefit",
    expect: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of expected outcomes, one line a case; exit 0 only if all are as it says.",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the outcomes.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run small workloads and hold a policy to the property that each asks for."""
    config = config_named(policy)
    expected = None if expect is None else read_expected(expect)
    found = read_cases(paths)
    if json is not None:
        output.check_writable(json)
    runs = registry.engine(engine)
    if not quiet:
        told = f"{len(found)} case{'s' * (len(found) > 1)} on {runs.version} under {config.label}"
        print(told, file=sys.stderr, flush=True)
    out = console()
    outcomes: list[Outcome] = []
    for case in found:
        outcomes.append(judge(case, config, runs))
        _show(outcomes[-1], out)
    out.print(totals(outcomes))
    unexpected = [] if expected is None else list(differences(expected, outcomes))
    for line in unexpected:
        out.print(Text(f"not as expected: {line}", style="bold red"), soft_wrap=True)
    if expected is not None and not unexpected:
        out.print("all as expected")
    if json is not None:
        output.write_json(document(outcomes, runs.version, policy, unexpected), json)
    failed = any(one.verdict is Verdict.FAILED for one in outcomes)
    if unexpected or (failed and expected is None):
        raise typer.Exit(FAULT)


def _show(outcome: Outcome, out: Console) -> None:
    lacking = f": {', '.join(outcome.lacking)}" if outcome.lacking else ""
    out.print(Text(f"{outcome}{lacking}", style=_STYLES[outcome.verdict]), soft_wrap=True)
    for line in [*map(str, outcome.failures), *outcome.notes]:
        out.print(Text(f"    {line}"), soft_wrap=True)


def document(
    outcomes: list[Outcome], engine: str, policy: str, unexpected: list[str]
) -> dict[str, Any]:
    """The outcomes, ready for JSON."""
    return {
        "apiVersion": "batchpolicy/v1",
        "kind": "CaseOutcomes",
        "engine": engine,
        "policy": policy,
        "cases": [
            {
                "id": one.case,
                "title": one.title,
                "outcome": one.verdict.value,
                "failures": [failure._asdict() for failure in one.failures],
                "lacking": list(one.lacking),
                "notes": list(one.notes),
            }
            for one in outcomes
        ],
        "not_as_expected": unexpected,
    }
