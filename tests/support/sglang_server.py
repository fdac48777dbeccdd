"""SGLang's server on the CPU, in processes of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.server_process import ServerProcess, free_port

ENGINE_ARGUMENTS: Mapping[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "dtype": "float32",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "max_total_tokens": 8192,
}


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, without a policy file unless ``extra`` names one."""
    kept = {k: v for k, v in os.environ.items() if k != "BATCHPOLICY_CONFIG"}
    ours = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return kept | ours | dict(extra)


class Server(ServerProcess):
    """One server, from its start to ``stop``; a context manager.

    With ``policy``, a file, ``batchpolicy serve`` starts it.
    """

    def __init__(
        self, model: Path, log: Path, *arguments: str, policy: Path | None = None, **extra: str
    ) -> None:
        port = str(free_port())
        command = [sys.executable, "-m", "sglang.launch_server"]
        if policy is not None:
            command = [sys.executable, "-m", "batchpolicy", "serve", "--engine", "sglang"]
            command += ["--policy", str(policy), "--"]
        command += ["--model-path", str(model)]
        command += ["--host", "127.0.0.1", "--port", port, "--skip-server-warmup"]
        for name, value in ENGINE_ARGUMENTS.items():
            option = f"--{name.replace('_', '-')}"
            command += [option] if value is True else [option, str(value)]
        url = f"http://127.0.0.1:{port}"
        super().__init__([*command, *arguments], url, log, environment(extra))
