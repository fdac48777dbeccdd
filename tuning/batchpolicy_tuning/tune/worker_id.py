"""Who works at a trial, and whether that process is still there."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_worker() -> str:
    """Name of this process: ``host/pid/start``, never used again, not even with its pid."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{pid}/{_start_of(pid)}"


def is_here(worker: str) -> bool:
    """Whether it is, or was, a process of this machine."""
    return worker.rpartition("/")[0].rpartition("/")[0] == socket.gethostname()


def is_gone(worker: str) -> bool:
    """Whether a process of this machine has ended."""
    host_and_pid, _, start = worker.rpartition("/")
    pid = host_and_pid.rpartition("/")[2]
    return not pid.isdigit() or _start_of(int(pid)) != start


def _start_of(pid: int) -> str:
    """When the process started, in ticks since the boot; empty for none, or a dead one."""
    try:
        # The name of the program, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _lives(pid)
    return "" if fields[0] in ("Z", "X") else fields[19]


def _lives(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
