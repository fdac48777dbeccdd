"""All commands: those of this package, and the installed ones, imported only when chosen."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
import typer.core
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.cli.bench import bench
from batchpolicy.cli.check import check
from batchpolicy.cli.policies import policies
from batchpolicy.cli.profiles import profiles
from batchpolicy.cli.serve import serve
from batchpolicy.errors import ConfigError

# Help without importing what runs the command.
_SUMMARIES = {
    "ab": "Compare policies on an engine: paired intervals, losers shown.",
    "cases": "Run scheduling cases: what each asks, what came out.",
    "conformance": "Hold the light engine to the step plans of a real one.",
    "predictor": "Train predictors of output lengths on prompts and answers, and judge them.",
    "tune": "Search policies and limits that meet targets, or say that none does.",
    "calibrate": "Fit a profile to a real run and judge it on requests the fit did not see.",
}


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
app.add_typer(policies, name="policies")
app.add_typer(profiles, name="profiles")
app.command("check")(check)
app.command("serve")(serve)
app.command("bench")(bench)


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
