"""The ``batchpolicy`` command: policies here, the rest from installed entry points."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer
import typer.core
from rich.console import Console
from rich.table import Column, Table
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.errors import (
    BatchPolicyError,
    ConfigError,
    EngineUnavailable,
    Interrupted,
    StepLimitReached,
    WorkloadError,
)
from batchpolicy.results_page import write_section

FAULT, USAGE = 1, 2
GATE_FAILED, INVALID = 4, 5
INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_THE_USERS = (ConfigError, WorkloadError, EngineUnavailable)

# Help without importing what runs the command.
_SUMMARIES = {
    "ab": "Compare policies on an engine: paired intervals, losers shown.",
    "cases": "Run scheduling cases: what each asks, what came out.",
    "conformance": "Hold the light engine to the step plans of a real one.",
    "predictor": "Train predictors of output lengths on prompts and answers, and judge them.",
    "tune": "Search policies and limits that meet targets, or say that none does.",
    "calibrate": "Fit a profile to a real run and judge it on requests the fit did not see.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 ok, 1 fault, 2 usage, 3 nothing feasible, 4 a gate failed, 5 the measurement is invalid
    or inconclusive, 130 Ctrl-C.
    Commands of other packages raise ``BatchPolicyError`` and leave the rest to this.
    """
    # Behind everything installed, so that no file of the user's shadows a library.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except Interrupted as e:
        return _told(e, INTERRUPTED)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has enough.
        _drop_output()
        return FAULT
    except OSError as e:
        # What stdout raises names no file.
        if e.filename is not None or e.errno not in _FULL:
            raise
        _drop_output()
        return _told(f"output cannot be written: {e.strerror}", FAULT)
    if status == INTERRUPTED:
        return _told("interrupted; nothing was written", status)
    return status


def _told(what: object, status: int) -> int:
    print(what, file=sys.stderr)
    return status


def _drop_output() -> None:
    # The interpreter flushes what is left at its exit, and must not complain then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    try:
        command = typer.main.get_command(app)
        command.main(args=None if arguments is None else list(arguments), prog_name="batchpolicy")
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else FAULT if e.code else 0
    except StepLimitReached as e:
        return _told(e, INVALID)
    except Interrupted:
        raise
    except BatchPolicyError as e:
        return _told(e, USAGE if isinstance(e, _THE_USERS) else FAULT)
    return 0


def emit_json(value: object) -> None:
    """Print a value as JSON; what JSON has no word for becomes text, such as ``"inf"``."""
    print(json.dumps(_finite(value), indent=2, default=str))


def console() -> Console:
    """Where tables go: plain when ``NO_COLOR`` is set or nobody looks at the terminal."""
    return Console(highlight=False)


def fail(message: str, status: int = FAULT) -> NoReturn:
    """End the command with a message on stderr."""
    print(message, file=sys.stderr)
    raise typer.Exit(status)


def _finite(value: object) -> object:
    if isinstance(value, float) and value - value != 0.0:
        return str(value)
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in cast("list[object]", value)]
    return value


class _Commands(typer.core.TyperGroup):
    """Adds the installed commands, each imported only when it is chosen."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name in registry.names(registry.COMMANDS):
            summary = _SUMMARIES.get(name, "An installed command.")
            # A stand-in, enough to be listed and to be suggested for a near miss.
            self.add_command(typer.core.TyperCommand(name, help=summary), name)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] and args[0] in registry.names(registry.COMMANDS):
            self.add_command(_loaded(args[0]), args[0])
        return super().resolve_command(ctx, args)


def _loaded(name: str) -> Any:
    found = registry.load(registry.COMMANDS, name)
    if not isinstance(found, typer.Typer):
        raise ConfigError(f"command {name!r} is {found!r}, expected a typer.Typer.")
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Scheduling policies for LLM serving engines.",
)
policies = typer.Typer(no_args_is_help=True, help="List, show and validate policies.")
app.add_typer(policies, name="policies")
profiles = typer.Typer(no_args_is_help=True, help="List and show step-cost profiles.")
app.add_typer(profiles, name="profiles")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"batchpolicy {version('batchpolicy')}")
        except PackageNotFoundError:
            print("batchpolicy, not installed")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


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


@app.command("check")
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


@app.command("serve")
def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- ENGINE ARGUMENTS",
            help="Everything behind -- is the engine's own: its model and options.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="FILE", envvar="BATCHPOLICY_CONFIG", help="Policy file."),
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine whose server is started.")] = "vllm",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not say what is started.")
    ] = False,
) -> None:
    """Start an engine's own server with a policy, once file, arguments and port are checked.

    Example: batchpolicy serve --policy policy.yaml -- MODEL --port 8001
    """
    from batchpolicy.config import load_config

    if policy is None:
        raise ConfigError(
            "no policy file is named, expected one: give --policy FILE, or set BATCHPOLICY_CONFIG."
        )
    config = load_config(policy)
    launch = registry.launcher_class(engine)().launch(Path(policy), config, arguments or [])
    if launch.address is not None:
        launch.address.check()
    if not quiet:
        where = "" if launch.address is None else f" on {launch.address}"
        said = f"{engine}{where} follows {policy} (policy {config.policy.name})"
        print(f"batchpolicy: {said}", file=sys.stderr)
    launch.start()


@app.command("bench")
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


def _said(error: Exception) -> str:
    text = str(error).strip() or "no message"
    ours = isinstance(error, BatchPolicyError)
    return text if ours else f"{type(error).__name__}: {text}"
