"""``batchpolicy serve`` with the real server behind it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.tiny_model import make_tiny_model
from tests.support.vllm_server import ENGINE_ARGUMENTS, MODEL, Server, environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "batchpolicy", "serve"]

POLICY = """
apiVersion: batchpolicy/v1
kind: Policy
policy: telling.py:Telling
requests: {tenant_from: [x-tenant]}
"""

# Says what it was told of requests; in a hook of the scheduler, from a header.
TELLING = """
from batchpolicy import Policy

class Telling(Policy):
    def benefit(self, requests, step):
        known = (requests.tenant >= 0).all()
        print(f"TOLD: tenants known {known}, targets {requests.ttft_slo_s.tolist()}", flush=True)
        return 1.0 / (1.0 + requests.ttft_slo_s)
"""


class Served(Server):
    """The same server, started by our command."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        command = [*COMMAND, "--policy", "policy.yaml", "--", str(folder / "model")]
        command += ["--served-model-name", MODEL, "--host", "127.0.0.1", f"--port={self.port}"]
        for name, value in ENGINE_ARGUMENTS.items():
            option = f"--{name.replace('_', '-')}"
            command += [option] if value is True else [option, str(value)]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment({}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process that the command was started in."""
        return self._process.pid


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    make_tiny_model(folder / "model")
    (folder / "policy.yaml").write_text(POLICY, encoding="utf-8")
    (folder / "telling.py").write_text(TELLING, encoding="utf-8")
    with Served(folder) as server:
        yield server


def refused(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a further start says that cannot succeed."""
    file = str(served._log.with_name("policy.yaml"))
    return subprocess.run(
        [*COMMAND, "--policy", file, "--", "no/such/model", *arguments],
        capture_output=True,
        text=True,
        env=environment({}),
        timeout=60,
        check=False,
    )


def test_one_command_serves_under_the_policy_with_what_headers_say(served: Served) -> None:
    served.wait_until_ready()
    body = {"model": MODEL, "prompt": "Tell me", "max_tokens": 3, "ignore_eos": True}
    headers = {"X-Tenant": "acme", "X-Batchpolicy-Ttft-Slo-S": "9.5"}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=120.0)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert "TOLD: tenants known True, targets [9.5]" in served.output
    first = served.output.splitlines()[0]
    assert first == (
        f"batchpolicy: vllm on 127.0.0.1:{served.port} follows policy.yaml "
        "(policy telling.py:Telling)"
    )
    # The process of the command is the server's own.
    assert set(re.findall(r"\(APIServer pid=(\d+)\)", served.output)) == {str(served.pid)}


@pytest.mark.parametrize("host", [[], ["--host", "127.0.0.1"], ["--host", "localhost"]])
def test_the_port_of_a_running_server_is_refused_before_vllm_is_asked(
    served: Served, host: list[str]
) -> None:
    served.wait_until_ready()
    done = refused(served, "--port", str(served.port), *host)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cannot listen on {(host or ['', '0.0.0.0'])[1]}:{served.port}: ")
    assert "choose another port" in line


def test_a_port_is_checked_as_vllm_itself_takes_it(served: Served) -> None:
    from vllm.entrypoints.openai.api_server import create_server_socket

    # As in the minutes between the start of a server and the first request.
    with create_server_socket(("", 0), reuse_port=False) as loading:
        port = str(loading.getsockname()[1])
        done = refused(served, "--port", port)
    assert done.returncode == 1
    assert f"cannot listen on 0.0.0.0:{port}: Address already in use" in done.stderr


def test_an_interrupt_reaches_the_server_and_frees_the_port(served: Served) -> None:
    served.wait_until_ready()
    os.kill(served.pid, signal.SIGINT)
    assert served._process.wait(60.0) == 0
    assert "Application shutdown complete." in served.output
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", served.port))
