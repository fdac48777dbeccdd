"""The real server with the plug-in: order, faults and live numbers as a client sees them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.sglang_server import Server
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.slow]

POLICY = """
apiVersion: batchpolicy/v1
kind: Policy
policy: {name: benefit, lambda: 0.5}
preempt: never
queue: {max_waiting: 6}
"""
ENDLESS = 8000
"""Tokens of an answer whose client leaves."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    file = folder / "policy.yaml"
    file.write_text(POLICY, encoding="utf-8")
    options = ["--max-running-requests", "1", "--enable-metrics"]
    with Server(model, folder / "log", *options, policy=file) as started:
        started.wait_until_ready()
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120.0) as made:
        yield made


def ask(client: httpx.Client, rid: str, tokens: int, **more: Any) -> httpx.Response:
    said = more.pop("said", {})
    params = {
        "max_new_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "custom_params": {"batchpolicy": said},
    }
    body = {"rid": rid, "text": f"to {rid}", "sampling_params": params, **more}
    return client.post("/generate", json=body)


def state(client: httpx.Client) -> dict[str, Any]:
    """Our part of ``/server_info``."""
    found: dict[str, Any] = client.get("/server_info").json()["internal_states"][0]["batchpolicy"]
    return found


def wait_for(client: httpx.Client, metric: str, least: int) -> None:
    """Until SGLang says that there are so many."""
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        for line in client.get("/metrics").text.splitlines():
            if line.startswith(f"sglang:{metric}{{") and float(line.split()[-1]) >= least:
                return
        time.sleep(0.05)
    raise AssertionError(f"{metric} never was {least}")


def test_the_policy_decides_who_starts_and_refuses_whom_the_queue_has_no_place_for(
    client: httpx.Client,
) -> None:
    with ThreadPoolExecutor(10) as pool:
        pool.submit(ask, client, "blocker", ENDLESS)
        wait_for(client, "num_running_reqs", 1)
        # SGLang's own direction: higher is more urgent.
        waiting = {f"r{i}": pool.submit(ask, client, f"r{i}", 4, priority=i) for i in range(6)}
        wait_for(client, "num_queue_reqs", 6)
        least = ask(client, "least", 4, priority=-9)
        client.post("/abort_request", json={"rid": "blocker"})
        told = {rid: answer.result().json()["meta_info"] for rid, answer in waiting.items()}
    assert least.status_code == 503
    assert "batchpolicy: refused: 6 may wait" in least.text
    # As the server saw them end: threads here may wake up in any order.
    ended = sorted(told, key=lambda rid: told[rid]["request_finished_ts"])
    assert ended == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert all(one["completion_tokens"] == 4 for one in told.values())


def test_hostile_metadata_is_counted_and_the_request_served(client: httpx.Client) -> None:
    before = state(client)["counters"].get("bad_metadata", 0)
    said = {"tenant": ["a"], "weight": -3, "queue_ttl_s": "x", "deadline_s": {"a": 1}}
    assert ask(client, "hostile", 2, said=said).status_code == 200
    body = {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 2, "custom_params": {"batchpolicy": 3}},
    }
    assert client.post("/generate", json=body).status_code == 200
    assert state(client)["counters"]["bad_metadata"] - before == 4


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_a_request_says_reaches_the_policy_by_the_openai_paths(
    path: str, client: httpx.Client
) -> None:
    before = state(client)["counters"].get("bad_metadata.weight", 0)
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 2,
        "custom_params": {"batchpolicy": {"weight": "none"}},
    }
    if path.endswith("chat/completions"):
        pytest.skip("the tiny model has no chat template")
    body["prompt"] = "hi"
    assert client.post(path, json=body).status_code == 200
    assert state(client)["counters"]["bad_metadata.weight"] == before + 1


def test_lambda_and_limits_change_while_it_serves(client: httpx.Client) -> None:
    def put(**values: Any) -> str:
        return client.post("/set_internal_state", json={"server_args": values}).text

    assert json.loads(put(batchpolicy_lambda=0.25)) == [True]
    assert json.loads(put(batchpolicy_token_budget=512)) == [True]
    for refused in (
        {"batchpolicy_lambda": -7},
        {"batchpolicy_max_running": 0.5},
        {"batchpolicy_x": 1},
    ):
        assert json.loads(put(**refused)) == [False]
    ask(client, "after", 3)
    found = state(client)
    assert found["lambda"] == 0.25
    assert found["limits"]["token_budget"] == 512
    assert found["counters"]["admitted"] > 0


def test_counters_are_on_the_metrics_page(client: httpx.Client) -> None:
    ask(client, "long", 150)
    lines = client.get("/metrics").text.splitlines()
    assert any(line.startswith('batchpolicy_events_total{event="admitted"') for line in lines)


@pytest.mark.parametrize(
    ("options", "policy", "said"),
    [
        (["--schedule-policy", "lpm"], "benefit", "--schedule-policy is 'lpm', expected fcfs"),
        ([], "fcsf", "no policy named 'fcsf'. Did you mean 'fcfs'?"),
    ],
)
def test_a_server_that_cannot_follow_the_policy_does_not_start(
    options: list[str], policy: str, said: str, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"apiVersion: batchpolicy/v1\nkind: Policy\npolicy: {policy}\n", "utf-8")
    with Server(model, tmp_path / "log", *options, BATCHPOLICY_CONFIG=str(file)) as server:
        assert server.wait_until_it_gives_up() != 0
        assert said in server.output
