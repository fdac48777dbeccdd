"""The ``policies`` commands: list, show, validate, schema."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Column, Table

from batchpolicy import registry
from batchpolicy.cli.output import USAGE, Json, console, emit_json
from batchpolicy.errors import ConfigError

policies = typer.Typer(no_args_is_help=True, help="List, show and validate policies.")


@policies.command("list")
def list_policies(as_json: Json = False) -> None:
    """Names of the installed policies, what they do, and whether they may starve somebody."""
    from batchpolicy.describe import installed_policies

    found = list(installed_policies())
    if as_json:
        keys = ("name", "summary", "class", "may_starve", "requires", "native", "error")
        emit_json([{key: one[key] for key in keys if key in one} for one in found])
        return
    table = Table("policy", "what it does", "may starve", box=None, pad_edge=False)
    for one in found:
        if "error" in one:
            table.add_row(one["name"], f"cannot be used: {one['error']}", "")
        else:
            table.add_row(one["name"], one["summary"], "yes" if one["may_starve"] else "no")
    console().print(table)


@policies.command("show")
def show_policy(
    policy: Annotated[str, typer.Argument(help="A name, module:Class or file.py:Class.")],
    as_json: Json = False,
) -> None:
    """A policy's description and parameters."""
    from batchpolicy.describe import policy_facts

    facts = policy_facts(policy, registry.policy_class(policy))
    if as_json:
        emit_json(facts)
        return
    out = console()
    out.print(f"{facts['name']}  ({facts['class']})\n", markup=False)
    out.print(facts["description"], markup=False, soft_wrap=True)
    starves = "may keep a request waiting for ever" if facts["may_starve"] else "starves nobody"
    needs = ", ".join(facts["requires"]) or "nothing beyond the request's own facts"
    out.print(f"\nIt {starves}. It requires: {needs}.\n", markup=False)
    if not facts["parameters"]:
        out.print("No parameters.")
        return
    key = Column("parameter", no_wrap=True)
    table = Table(key, "default", "allowed", "searched", "", box=None, pad_edge=False)
    for one in facts["parameters"]:
        table.add_row(*(str(one[k]) for k in ("key", "default", "allowed", "searched", "help")))
    out.print(table, markup=False)


@policies.command("validate")
def validate_files(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Policy files.")],
    as_json: Json = False,
) -> None:
    """Check policy files; every mistake is named with its line."""
    from batchpolicy.config import load_config

    results: list[dict[str, object]] = []
    for file in files:
        try:
            config = load_config(file)
        except ConfigError as e:
            results.append({"file": file, "valid": False, "mistakes": str(e).splitlines()})
            if not as_json:
                print(e, file=sys.stderr)
        else:
            results.append({"file": file, "valid": True, "policy": config.policy.name})
            if not as_json:
                print(f"{file}: valid, policy {config.policy.name}")
    if as_json:
        emit_json(results)
    if not all(one["valid"] for one in results):
        raise typer.Exit(USAGE)


@policies.command("schema")
def print_schema() -> None:
    """JSON schema of policy files, for editors."""
    from batchpolicy.config import config_schema

    emit_json(config_schema())
