"""The command itself: from its options to tables, files and a status."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from batchpolicy import registry
from batchpolicy.cli import GATE_FAILED, INVALID, console
from batchpolicy.engine import EngineLimits
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.profiles import load_profile
from batchpolicy.target_grammar import parse_gates
from batchpolicy_tuning import ab, document, gates, output
from batchpolicy_tuning.arms import arms_named
from batchpolicy_tuning.cli.options import only_engine, parse_loads, parse_margin
from batchpolicy_tuning.cli.progress import progress_shown
from batchpolicy_tuning.cli.tables import show
from batchpolicy_tuning.pool import interrupted_once
from batchpolicy_tuning.prefix_cache import settled
from batchpolicy_tuning.workloads.catalog import EMBEDDED, workload_named

MOST_PROCESSES = 8
"""Processes that are started unasked: each holds an engine in memory."""

app = typer.Typer(add_completion=False)


@app.command()
def compare(
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY...",
            help="Policy files, names or path.py:Class; the first is the baseline.",
            show_default=False,
        ),
    ],
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help=f"{', '.join(EMBEDDED)}, or a file of docs/workloads.md: a trace (.csv, .jsonl, "
            "also .gz) or generators (.yaml).",
        ),
    ],
    load: Annotated[
        str, typer.Option(metavar="L[,L...]", help="Load as a fraction of what fcfs sustains.")
    ] = "0.9",
    engine: Annotated[
        str | None, typer.Option(help="Engine to replay on; by default the one installed.")
    ] = None,
    classes: Annotated[
        Path | None, typer.Option(help="File of classes, tenants and targets for a trace.")
    ] = None,
    pairs: Annotated[
        int, typer.Option(min=2, max=1000, help="Replications that each policy serves.")
    ] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is drawn.")] = 0,
    requests: Annotated[
        int,
        typer.Option(
            min=20, max=1_000_000, help="Requests per replication of an embedded workload."
        ),
    ] = 400,
    profile: Annotated[
        str, typer.Option(help="Step cost: how long steps take.")
    ] = "h100-llama-3.1-8b",
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 2048,
    kv_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Tokens that the KV cache holds; else the profile's."),
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a KV block.")] = 16,
    async_scheduling: Annotated[
        bool, typer.Option(help="Plan each step before the results of the last, as on a GPU.")
    ] = False,
    prefix_cache: Annotated[
        bool | None,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Reuse the KV of equal prefixes; by default where the engine can.",
            show_default=False,
        ),
    ] = None,
    max_loras: Annotated[
        int | None,
        typer.Option(
            min=1, help="LoRA adapters that run at once; needed where requests name adapters."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Processes; by default one per core, up to 8."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="File for the results of every replication.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="File for a report with plots, to be opened in a browser.")
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GATE",
            help="Change against the baseline that no policy may exceed, such as ttft.p99<=+5% "
            "or attainment>=-1%@class=chat; may be given more than once. Exit 4 unless all are "
            "shown to hold, 5 when the measurement cannot tell.",
        ),
    ] = None,
    margin: Annotated[
        str,
        typer.Option(metavar="PERCENT", help="Change up to which two policies are equivalent."),
    ] = "5%",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Compare scheduling policies on the same workloads, pair by pair."""
    if len(policies) < 2:
        raise ConfigError(
            f"{policies[0]!r} has nothing to be compared with; name the baseline before it, "
            "as in: batchpolicy ab fcfs benefit"
        )
    loads = parse_loads(load)
    asked = parse_gates(gate or ())
    arms = arms_named(policies)
    inputs = [*policies, workload, profile, *([str(classes)] if classes else [])]
    output.check_apart([path for path in (json, html) if path is not None], inputs)
    drawn = None if html is None else _page()
    made = load_profile(profile)
    pool_tokens = made.kv_tokens if kv_tokens is None else kv_tokens
    if block_size > pool_tokens:
        raise ConfigError(
            f"one block of {block_size:,} tokens is more than the KV pool of {pool_tokens:,}"
        )
    engine = engine or only_engine()
    cached = settled(engine, prefix_cache)
    limits = EngineLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=pool_tokens // block_size,
        kv_block_tokens=block_size,
        prefix_cache=cached,
        async_scheduling=async_scheduling,
        max_loras=max_loras,
    )
    made.check_limits(limits)
    if max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {max_num_batched_tokens} is below "
            f"--max-num-seqs {max_num_seqs}"
        )
    processes = jobs or min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    plan = ab.Plan(
        make_engine=functools.partial(registry.engine, engine),
        arms=arms,
        source=workload_named(workload, pairs=pairs, requests=requests, classes=classes),
        loads=loads,
        pairs=pairs,
        limits=limits,
        profile=made,
        seed=seed,
        processes=min(processes, pairs * len(arms)),
        margin=parse_margin(margin),
        gates=asked,
        cacheless=engine if prefix_cache is None and not cached else "",
    )
    with interrupted_once():
        with progress_shown(quiet) as progress:
            results = ab.run_comparison(plan, progress)
        lost: OSError | SystemExit | None = None
        try:
            show(results, console())
            sys.stdout.flush()
        except (OSError, SystemExit) as fault:
            lost = fault  # the files may be had even so; rich exits where nobody reads
        told = document.document(results) if json is not None or html is not None else {}
        if json is not None:
            with _named(json, lost is None):
                output.write_json(told, json)
        if html is not None and drawn is not None:
            with _named(html, lost is None):
                output.write_whole(drawn(told), html)
    if lost is not None:
        raise lost
    for said in gates.failed_throughout(results):
        print(f"error: {said}", file=sys.stderr)
    raise typer.Exit(exit_status(results))


@contextmanager
def _named(path: Path, shown: bool) -> Generator[None, None, None]:
    try:
        yield
    except OSError as fault:
        table_too = "; the table above is complete" if shown else ""
        raise BatchPolicyError(
            f"{path}: cannot be written: {fault.strerror}{table_too}"
        ) from fault


def exit_status(results: ab.Results) -> int:
    """0; 4 when a gate failed anywhere; else 5 when one, or a policy, could not be measured."""
    others = range(1, len(results.plan.arms))
    judged = [
        one for at in results.loads for arm in others for one in gates.judge(results, at, arm)
    ]
    if gates.is_failed(judged):
        return GATE_FAILED
    return INVALID if gates.is_invalid(judged) or gates.failed_throughout(results) else 0


def _page() -> Callable[[Mapping[str, Any]], str]:
    """What makes the page; asked for before any run, as it may lack what it draws with."""
    try:
        from batchpolicy_tuning.page import page
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"--html needs {missing.name}, which is not installed; "
            "pip install 'batchpolicy[tuning]'"
        ) from missing
    return page
