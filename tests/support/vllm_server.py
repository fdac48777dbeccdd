"""vLLM's OpenAI-compatible server on the CPU, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

MODEL = "tiny"
START_S = 240.0
"""Longest that a start may take on a busy machine."""

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


class Server:
    """One server, from its start to ``stop``; a context manager."""

    def __init__(self, model: Path, log: Path, *arguments: str, **extra: str) -> None:
        self._log = log
        self.url = f"http://127.0.0.1:{_free_port()}"
        port = self.url.rpartition(":")[2]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(model), "--served-model-name", MODEL]
        command += ["--host", "127.0.0.1", "--port", port]
        for name, value in ENGINE_ARGUMENTS.items():
            option = f"--{name.replace('_', '-')}"
            command += [option] if value is True else [option, str(value)]
        with log.open("wb") as out:
            # A session of its own, so that its whole family can be ended by one id.
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(extra),
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What the server has printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_until_ready(self) -> None:
        """Return when the server answers; an error with its output if it does not."""
        deadline_s = time.monotonic() + START_S
        with httpx.Client(base_url=self.url, timeout=5.0) as client:
            while self._process.poll() is None and time.monotonic() < deadline_s:
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/health").status_code == 200:
                        return
                time.sleep(0.2)
        raise AssertionError(f"the server did not start:\n{self.output[-6000:]}")

    def wait_until_it_gives_up(self) -> int:
        """Exit status of a server that must not start."""
        return self._process.wait(START_S)

    def stop(self) -> None:
        """End the server and all that it started."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20.0)
        _wait_until_group_is_gone(self._process.pid)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _wait_until_group_is_gone(group: int) -> None:
    deadline_s = time.monotonic() + 20.0
    while time.monotonic() < deadline_s:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
