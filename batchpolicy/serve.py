"""Starting an engine's own server with a policy: what ``batchpolicy serve`` does."""

from __future__ import annotations

import errno
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from batchpolicy.config import PolicyConfig
from batchpolicy.errors import BatchPolicyError, ConfigError

_ADVICE = {
    errno.EADDRINUSE: "Stop the server that has it, which may still be loading its model, or "
    "choose another port with --port.",
    errno.EACCES: "Ports below 1024 are for root: choose another with --port.",
}
_OTHER_ADVICE = "Name this machine, or one address of it, with --host, or leave that out."
_CONNECTIONS = ("/proc/net/tcp", "/proc/net/tcp6")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is going to listen."""

    host: str
    """A name or an address of this machine; empty for all those of IPv4."""
    port: int
    """0 for one that the system picks."""

    @classmethod
    def read(cls, host: str, port: str) -> Address:
        """The address that two options name.

        Raises
        ------
        ConfigError
            When the port is none.
        """
        try:
            number = int(port)
        except ValueError:
            number = -1
        if 0 <= number <= 65535:
            return cls(host, number)
        raise ConfigError(f"--port is {port!r}, expected a number up to 65535, such as 8000.")

    def __str__(self) -> str:
        """As ``0.0.0.0:8000`` or ``[::1]:8000``."""
        host = f"[{self.host}]" if ":" in self.host else self.host or "0.0.0.0"
        return f"{host}:{self.port or '0 (any free port)'}"

    def check(self) -> None:
        """Take the port for a moment, so that nobody loads a model in vain.

        Raises
        ------
        BatchPolicyError
            When another server has it, or the host is not this machine.
        """
        try:
            self._bind(reuse=True)
            self._refuse_claimed()
        except (OSError, TypeError) as e:  # the latter for a name that cannot be encoded
            number, said = (
                (e.errno, e.strerror) if isinstance(e, OSError) else (None, "not a name")
            )
            raise BatchPolicyError(
                f"cannot listen on {self}: {said}; expected a free port of this machine. "
                f"{_ADVICE.get(number or 0, _OTHER_ADVICE)}"
            ) from e

    def _bind(self, *, reuse: bool) -> None:
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            probe.bind((self.host, self.port))

    def _refuse_claimed(self) -> None:
        """Refuse the port of a server that listens only once its model is loaded, as vLLM's."""
        try:
            self._bind(reuse=False)
        except OSError:
            # Those who listen have been refused. Connections of a server that has ended, in
            # nobody's way, are in these tables; a socket that has no more than the port is not.
            tables = [Path(name).read_text() for name in _CONNECTIONS if Path(name).exists()]
            if tables and f":{self.port:04X} " not in "".join(tables):
                raise


@dataclass(frozen=True, slots=True)
class Launch:
    """A server that is ready to be started."""

    command: Sequence[str]
    """The path of a program, and its arguments."""
    environment: Mapping[str, str]
    """What it needs beside the environment of this process."""
    address: Address | None
    """None where it listens on no port."""

    def start(self) -> NoReturn:
        """Become the server: signals go to it, and the exit status is its own."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.command[0], list(self.command), {**os.environ, **self.environment})


class Launcher(ABC):
    """Starts the server of one engine with a policy."""

    @abstractmethod
    def launch(self, file: Path, config: PolicyConfig, arguments: Sequence[str]) -> Launch:
        """What starts the server with ``config``, read from ``file``, and its own arguments.

        Raises
        ------
        ConfigError
            When the arguments contradict the policy file, or the engine cannot follow it.
        EngineUnavailable
            When the engine is not installed.
        """
