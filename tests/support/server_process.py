"""An engine's server in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

START_S = 240.0
"""Longest that a start may take on a busy machine."""


class ServerProcess:
    """One server, from its start to ``stop``; a context manager."""

    def __init__(
        self, command: Sequence[str], url: str, log: Path, environment: Mapping[str, str]
    ) -> None:
        self._log = log
        self.url = url
        with log.open("wb") as out:
            # A session of its own, so that its whole family can be ended by one id.
            self._process = subprocess.Popen(
                list(command),
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environment),
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

    def __enter__(self) -> Self:
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


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
