"""The ``check`` command."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer
from rich.table import Table

from batchpolicy.cli.output import FAULT, Json, console, emit_json
from batchpolicy.errors import BatchPolicyError


def check(
    policy: Annotated[
        str, typer.Argument(help="A name, policy file, module:Class or file.py:Class.")
    ],
    as_json: Json = False,
) -> None:
    """Hold a policy to the promises of the interface; exit 1 when it breaks one."""
    from batchpolicy.config import config_named
    from batchpolicy.testing import check_policy

    # What a policy prints must not get into the report.
    with contextlib.redirect_stdout(sys.stderr):
        results = check_policy(config_named(policy).build_policy(), on_fail="report")
    failed = [one for one in results if one.status == "failed"]
    if as_json:
        emit_json(
            {
                "policy": policy,
                "passed": not failed,
                "checks": [
                    {
                        "check": one.check,
                        "status": one.status,
                        "error": None if one.error is None else _said(one.error),
                    }
                    for one in results
                ],
            }
        )
    else:
        table = Table("promise", "", "", box=None, pad_edge=False)
        for one in results:
            promise = one.check.removeprefix("check_").replace("_", " ")
            table.add_row(promise, one.status, "" if one.error is None else _said(one.error))
        console().print(table, markup=False)
        kept = len(results) - len(failed)
        print(f"\n{policy}: {kept} of {len(results)} promises kept")
    if failed:
        raise typer.Exit(FAULT)


def _said(error: Exception) -> str:
    text = str(error).strip() or "no message"
    ours = isinstance(error, BatchPolicyError)
    return text if ours else f"{type(error).__name__}: {text}"
