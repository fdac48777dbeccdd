"""A real server that only prefills, with the plug-in, on one rank and on two."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.kv_to_nowhere import HELD_ROOM, HOST, OPTIONS, plug_in
from tests.support.sglang_server import Server
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.slow]

POLICY = """
apiVersion: batchpolicy/v1
kind: Policy
policy: priority
preempt: class
queue: {max_waiting: 3}
"""
STEP = 128
"""Tokens of a step, and of a prompt whose turn counts."""


def ask(client: httpx.Client, rid: str, prompt: int, room: int, priority: int) -> httpx.Response:
    body = {
        "rid": rid,
        "input_ids": [5 + room] * prompt,
        "sampling_params": {"max_new_tokens": 4000, "temperature": 0},
        "bootstrap_host": HOST,
        "bootstrap_room": room,
        "priority": priority,
    }
    return client.post("/generate", json=body)


def wait_until(client: httpx.Client, queue: str, count: int) -> None:
    """Until SGLang says that so many are in a queue."""
    deadline_s = time.monotonic() + 60.0
    found: dict[str, int] = {}
    while time.monotonic() < deadline_s:
        load = client.get("/v1/loads").json()["loads"][0]
        found = load["disaggregation"] | load["queues"]
        if found[queue] == count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{queue} never was {count}: {found}")


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_starts_by_the_policy_and_refuses_whom_the_queue_has_no_place_for(
    ranks: int, tmp_path: Path
) -> None:
    model, file = make_tiny_model(tmp_path / "model"), tmp_path / "policy.yaml"
    file.write_text(POLICY, encoding="utf-8")
    gate = tmp_path / "gate"
    gate.touch()
    options = [
        *OPTIONS,
        "--enable-metrics",
        "--max-running-requests",
        "4",
        "--page-size",
        "16",
        "--tp-size",
        f"{ranks}",
    ]
    options += ["--chunked-prefill-size", f"{STEP}"]
    environment = plug_in(tmp_path / "plug-in", gate) | {"BATCHPOLICY_CONFIG": str(file)}
    if ranks > 1:
        # SGLang's own check; it ends the server as soon as two ranks differ.
        environment["SGLANG_ENABLE_RANK_CONSENSUS_CHECKER"] = "1"
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"
    with Server(model, tmp_path / "log", *options, **environment) as server:
        server.wait_until_ready()
        client = httpx.Client(base_url=server.url, timeout=120.0)
        with client, ThreadPoolExecutor(10) as pool:
            # Their KV is on its way, and they hold all places that there are.
            held = [pool.submit(ask, client, f"held{i}", 20, HELD_ROOM, 0) for i in range(4)]
            wait_until(client, "prefill_inflight_queue_reqs", 4)
            # SGLang's own direction: higher is more urgent.
            waiting = {
                f"r{i}": pool.submit(ask, client, f"r{i}", STEP, 10 + i, i) for i in (2, 1, 3)
            }
            wait_until(client, "waiting", 3)
            least = ask(client, "least", 20, 20, -9)
            counted = client.get("/server_info").json()["internal_states"][0]["batchpolicy"]
            gate.unlink()
            assert all(answer.result().status_code == 200 for answer in held)
            told = {rid: answer.result().json()["meta_info"] for rid, answer in waiting.items()}
    assert least.status_code == 503
    assert "batchpolicy: refused: 3 may wait" in least.text
    # As the server saw them end: threads here may wake up in any order.
    ended = sorted(told, key=lambda rid: told[rid]["request_finished_ts"])
    assert ended == ["r3", "r2", "r1"]
    assert counted["counters"]["admitted"] == 4
    assert "adapter_faults" not in counted["counters"]
