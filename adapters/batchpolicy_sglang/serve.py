"""SGLang's own server with a policy: what ``batchpolicy serve --engine sglang`` starts."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from typing_extensions import override

from batchpolicy.config import PolicyConfig
from batchpolicy.errors import ConfigError
from batchpolicy.metadata import VARIABLE
from batchpolicy.registry import lacks_package
from batchpolicy.serve import Address, Launch, Launcher
from batchpolicy.server_arguments import read_arguments
from batchpolicy_sglang.seams.conflicts import Options, conflicts


class SglangServer(Launcher):
    """``sglang.launch_server``, which finds the plug-in by itself."""

    @override
    def launch(self, file: Path, config: PolicyConfig, arguments: Sequence[str]) -> Launch:
        # As in ``sglang serve MODEL``; the module takes the model by its option only.
        if arguments and not arguments[0].startswith("-"):
            arguments = ["--model-path", *arguments]
        said = _read(arguments)
        faults = list(conflicts(_options(said)))
        if faults:
            raise ConfigError("\n".join(faults))
        if find_spec("sglang") is None:
            raise lacks_package("sglang", "sglang")
        command = [sys.executable, "-m", "sglang.launch_server", *arguments]
        address = None if said.help else Address.read(said.host, said.port)
        return Launch(command, {VARIABLE: str(file.absolute())}, address)


def _options(said: Namespace) -> Options:
    return Options(
        schedule_policy=said.schedule_policy,
        priority_scheduling=said.enable_priority_scheduling,
        diffusion=said.dllm_algorithm is not None,
        hisparse=said.enable_hisparse,
        pdmux=said.enable_pdmux,
        lora_overlap_loading=said.enable_lora_overlap_loading,
        role=said.disaggregation_mode,
        stages=int(said.pp_size) if said.pp_size.isdecimal() else 1,
        role_switch=said.enable_pd_role_switch,
    )


def _read(arguments: Sequence[str]) -> Namespace:
    """What we have to know of SGLang's arguments."""
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    for name, default in (
        ("host", "127.0.0.1"),
        ("port", "30000"),
        ("schedule-policy", "fcfs"),
        ("disaggregation-mode", "null"),
        ("dllm-algorithm", None),
        ("config", None),
    ):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--pipeline-parallel-size", "--pp-size", dest="pp_size", default="1")
    for name in (
        "enable-priority-scheduling",
        "enable-hisparse",
        "enable-pdmux",
        "enable-lora-overlap-loading",
        "enable-pd-role-switch",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--help", "-h", nargs="?", const=True)
    return read_arguments(parser, arguments, "SGLang")
