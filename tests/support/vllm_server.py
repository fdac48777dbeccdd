"""vLLM's OpenAI-compatible server on the CPU, in processes of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.server_process import ServerProcess, free_port

MODEL = "tiny"

_ENVIRONMENT = {
    # Little memory, one thread, nothing sent and nothing fetched.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # The replay quietens vLLM in the process that imports it.
    "VLLM_LOGGING_LEVEL": "INFO",
    # The model in the engine's own process: two processes that spin while they wait for
    # each other starve everything else on a machine of two cores.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
ENGINE_ARGUMENTS: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 32768,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 4096,
    "distributed_executor_backend": "uni",
}


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, without a policy file unless ``extra`` names one."""
    kept = {k: v for k, v in os.environ.items() if k != "BATCHPOLICY_CONFIG"}
    return kept | _ENVIRONMENT | dict(extra)


class Server(ServerProcess):
    """One server, from its start to ``stop``; a context manager."""

    def __init__(self, model: Path, log: Path, *arguments: str, **extra: str) -> None:
        port = str(free_port())
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(model), "--served-model-name", MODEL]
        command += ["--host", "127.0.0.1", "--port", port]
        for name, value in ENGINE_ARGUMENTS.items():
            option = f"--{name.replace('_', '-')}"
            command += [option] if value is True else [option, str(value)]
        url = f"http://127.0.0.1:{port}"
        super().__init__([*command, *arguments], url, log, environment(extra))
