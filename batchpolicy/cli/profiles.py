"""The ``profiles`` commands: list and show."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer
from rich.table import Column, Table

from batchpolicy.cli.output import Json, console, emit_json

profiles = typer.Typer(no_args_is_help=True, help="List and show step-cost profiles.")


@profiles.command("list")
def list_profiles(as_json: Json = False) -> None:
    """Names of the shipped profiles, of which GPU and model, and how far off they are."""
    from batchpolicy.profiles.facts import installed_profiles

    found = list(installed_profiles())
    if as_json:
        emit_json(found)
        return
    right = [Column(name, justify="right") for name in ("KV tokens", "median error", "worst")]
    table = Table(Column("profile", no_wrap=True), "GPU", *right, box=None, pad_edge=False)
    for one in found:
        if "error" in one:
            table.add_row(one["name"], f"cannot be used: {one['error']}")
            continue
        gpu = one["hardware"] if one["tp"] == 1 else f"{one['tp']} x {one['hardware']}"
        tokens = "" if one["kv_tokens"] is None else f"{one['kv_tokens']:,}"
        fit = one.get("fit", {}).get("overall", {})
        errors = (f"{fit[key]:.1%}" if key in fit else "" for key in ("median", "worst"))
        table.add_row(one["name"], gpu, tokens, *errors)
    console().print(table, markup=False)


@profiles.command("show")
def show_profile(
    profile: Annotated[
        str, typer.Argument(help="A name, profile file, module:function or file.py:function.")
    ],
    as_json: Json = False,
) -> None:
    """A profile's origin, error, envelope, KV tokens, and the times of some steps."""
    from batchpolicy.profiles import load_profile
    from batchpolicy.profiles.facts import profile_facts

    # What a callable prints must not get into the facts.
    with contextlib.redirect_stdout(sys.stderr):
        facts = profile_facts(load_profile(profile))
    if as_json:
        emit_json(facts)
        return
    out = console()
    gpus = f"{facts['tp']} x " if facts["tp"] > 1 else ""
    out.print(f"{facts['name']}: {facts['model']} on {gpus}{facts['hardware']}\n", markup=False)
    about = Table("", "", box=None, pad_edge=False, show_header=False)
    origin, kv = facts["origin"], facts["kv_tokens"]
    source = facts["kv_source"] or facts.get("kv_memory", {}).get("derivation", "")
    about.add_row("step times", facts["trust"])
    about.add_row("", origin["measures"])
    about.add_row("data", f"{origin['data']}; {origin['engine']}; licence {origin['licence']}")
    about.add_row("KV tokens", "not stated: give --kv-tokens" if kv is None else f"{kv:,}")
    about.add_row("", source)
    for key, most in (facts["envelope"] or {"not stated": ""}).items():
        reach = f"{key.replace('_', ' ')} up to {most:,}" if most else key
        about.add_row("measured" if key in ("prefill_tokens", "not stated") else "", reach)
    if origin["notes"]:
        about.add_row("notes", origin["notes"])
    out.print(about, markup=False)
    steps = Table("step", Column("time", justify="right"), box=None, pad_edge=False)
    for name, seconds in facts["steps_s"].items():
        steps.add_row(name, f"{seconds * 1000.0:.1f} ms")
    out.print()
    out.print(steps, markup=False)
