"""Headers of requests to the real server, as far as the policy."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from tests.support.tiny_model import make_tiny_model
from tests.support.vllm_server import MODEL, Server

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MIDDLEWARE = ("--middleware", "batchpolicy_vllm.HeaderMiddleware")
SCHEDULER = ("--scheduler-cls", "batchpolicy_vllm.PolicyScheduler")

POLICY = """
apiVersion: batchpolicy/v1
kind: Policy
policy: dutiful.py:Dutiful
requests: {tenant_from: [x-tenant]}
"""

# Fails, and is then served in order of arrival, if a request comes without its headers.
DUTIFUL = """
from batchpolicy import Policy

class Dutiful(Policy):
    def benefit(self, requests, step):
        if (requests.tenant < 0).any() or (requests.session < 0).any():
            raise RuntimeError("a request names no tenant or no session")
        return 1.0 / (1.0 + requests.ttft_slo_s)
"""

MISTAKEN = """
apiVersion: batchpolicy/v1
kind: Policy
policy: fcfs
requests: {tenant_from: [header.x-tenant]}
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    folder = tmp_path_factory.mktemp("headers")
    make_tiny_model(folder / "model")
    for name, text in {
        "policy.yaml": POLICY,
        "dutiful.py": DUTIFUL,
        "mistaken.yaml": MISTAKEN,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    asked = {
        "good": ("policy.yaml", (*MIDDLEWARE, *SCHEDULER)),
        "mistaken": ("mistaken.yaml", MIDDLEWARE),
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Server(
                    folder / "model",
                    folder / f"{name}.log",
                    *arguments,
                    BATCHPOLICY_CONFIG=str(folder / file),
                )
            )
            for name, (file, arguments) in asked.items()
        }


def post(client: httpx.Client, tokens: int, xargs: dict[str, Any], **headers: str) -> float:
    """When the answer came to a completion with these headers."""
    body = {"model": MODEL, "prompt": "Tell me", "max_tokens": tokens, "ignore_eos": True}
    sent = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    answer = client.post("/v1/completions", json=body | {"vllm_xargs": xargs}, headers=sent)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == tokens
    return time.monotonic()


def wait_for(client: httpx.Client, *, waiting: int) -> None:
    """Return when one request runs and so many wait."""
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        found = re.findall(
            r"^vllm:num_requests_(running|waiting){.*} (\S+)$",
            client.get("/metrics").text,
            re.MULTILINE,
        )
        if {state: float(n) for state, n in found} == {"running": 1.0, "waiting": waiting}:
            return
        time.sleep(0.01)
    raise AssertionError("the requests do not queue")


@contextmanager
def holding_the_seat(client: httpx.Client) -> Iterator[None]:
    """Inside, a request has the only seat; on leaving, its client is gone."""
    body = {"model": MODEL, "prompt": "Tell me", "max_tokens": 30_000, "ignore_eos": True}
    headers = {"X-Tenant": "a", "X-Session-ID": "s"}
    with client.stream(
        "POST", "/v1/completions", json=body | {"stream": True}, headers=headers
    ) as stream:
        # Kept: without it the response would be closed.
        lines = stream.iter_lines()
        assert next(lines).startswith("data:")
        yield


def test_headers_of_concurrent_requests_reach_the_policy(servers: dict[str, Server]) -> None:
    server = servers["good"]
    server.wait_until_ready()
    with httpx.Client(base_url=server.url, timeout=120.0) as client, ThreadPoolExecutor() as pool:
        answers: dict[str, Future[float]] = {}
        with holding_the_seat(client):
            for target, tenant in (("300", "a"), ("100", "b"), ("200", "Größe")):
                answers[target] = pool.submit(
                    post,
                    client,
                    400,
                    {"ttft_slo_s": 500 - int(target), "x-tenant": "forged"},
                    X_Tenant=tenant,
                    X_Session_ID=f"s{target}",
                    X_Batchpolicy_Ttft_Slo_S=target,
                )
                wait_for(client, waiting=len(answers))
        came_s = {target: answer.result() for target, answer in answers.items()}
    assert sorted(came_s, key=lambda target: came_s[target]) == ["100", "200", "300"]
    assert "Traceback" not in server.output


def test_without_the_header_the_body_names_no_tenant(servers: dict[str, Server]) -> None:
    server = servers["good"]
    server.wait_until_ready()
    with httpx.Client(base_url=server.url, timeout=120.0) as client:
        post(client, 3, {"x-tenant": "forged"}, X_Session_ID="s")
    assert server.output.count("RuntimeError: a request names no tenant or no session") == 1


def test_a_server_whose_policy_file_names_an_unknown_place_does_not_start(
    servers: dict[str, Server],
) -> None:
    server = servers["mistaken"]
    assert server.wait_until_it_gives_up() != 0
    assert "engines cannot read it; expected vllm_xargs.KEY" in server.output
    assert "Did you mean 'x-tenant'?" in server.output
