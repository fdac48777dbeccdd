"""The ``serve`` command."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from batchpolicy import registry
from batchpolicy.errors import ConfigError


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
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine whose server is started; by default the one installed, of several vllm."
        ),
    ] = None,
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
    engine = engine or _installed()
    launch = registry.launcher_class(engine)().launch(Path(policy), config, arguments or [])
    if launch.address is not None:
        launch.address.check()
    if not quiet:
        where = "" if launch.address is None else f" on {launch.address}"
        said = f"{engine}{where} follows {policy} (policy {config.policy.name})"
        print(f"batchpolicy: {said}", file=sys.stderr)
    launch.start()


def _installed() -> str:
    found = [name for name in registry.names(registry.SERVERS) if find_spec(name) is not None]
    return found[0] if len(found) == 1 else "vllm"
