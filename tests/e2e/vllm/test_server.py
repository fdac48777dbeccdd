"""The real server with our scheduler: order, tokens and faults as a client sees them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.tiny_model import make_tiny_model
from tests.support.vllm_server import ENGINE_ARGUMENTS, MODEL, Server, environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCHEDULER = ("--scheduler-cls", "batchpolicy_vllm.PolicyScheduler")
PROMPTS = {name: f"The answer of {name} is " * 4 for name in ("one", "two", "three", "four")}
TOKENS = 120
SPACED = 400
"""Tokens of answers whose order counts: enough for the order to survive the way here."""
LONG = 2000
ENDLESS = 30_000

# Prints the tokens of each prompt as vLLM gives them by itself.
REFERENCE = """
import json, sys
from vllm import LLM, SamplingParams

model, arguments, prompts = json.loads(sys.argv[1])
llm = LLM(model=model, **arguments)
params = SamplingParams(max_tokens={tokens}, temperature=0.0, ignore_eos=True)
answers = llm.generate(list(prompts.values()), params, use_tqdm=False)
found = dict(zip(prompts, (list(answer.outputs[0].token_ids) for answer in answers)))
print("TOKENS " + json.dumps(found))
"""

POLICY = """
apiVersion: batchpolicy/v1
kind: Policy
policy: {name: benefit, urgency: {half_life_s: 60}}
preempt: class
"""

FAULTY_POLICY = """
apiVersion: batchpolicy/v1
kind: Policy
policy: faulty.py:Faulty
"""

FAULTY = """
from batchpolicy import Policy

class Faulty(Policy):
    _calls: int = 0

    def benefit(self, requests, step):
        self._calls += 1
        if self._calls >= 5:
            raise RuntimeError("the policy lost its way")
        return -requests.seq.astype(float)
"""

MISTAKEN_POLICY = """
apiVersion: batchpolicy/v1
kind: Policy
policy:
  name: benefit
  lamda: 1.0
  urgency: {half_life_s: 10 parsecs}
preemt: class
"""


class Client:
    """Sends completions to a server, each from a thread of its own."""

    def __init__(self, server: Server) -> None:
        self._http = httpx.Client(base_url=server.url, timeout=120.0)
        self._threads = ThreadPoolExecutor(16)
        self.finished: list[str] = []
        """Names of the completions, in the order in which their answers came."""

    def complete(self, name: str, tokens: int = TOKENS, **facts: Any) -> list[int]:
        """Tokens of one completion."""
        answer = self._http.post("/v1/completions", json=_body(name, tokens, facts))
        assert answer.status_code == 200, answer.text
        found: list[int] = answer.json()["choices"][0]["token_ids"]
        assert len(found) == tokens
        self.finished.append(name)
        return found

    def start(self, name: str, tokens: int = TOKENS, **facts: Any) -> Future[list[int]]:
        """The same, without waiting for it."""
        return self._threads.submit(self.complete, name, tokens, **facts)

    def wait_for(self, *, running: int, waiting: int) -> None:
        """Return when so many requests run and wait."""
        deadline_s = time.monotonic() + 60.0
        while (seen := self._running_and_waiting()) != (running, waiting):
            assert time.monotonic() < deadline_s, f"{seen} run and wait"
            time.sleep(0.01)

    @contextmanager
    def holding_the_seat(self) -> Iterator[None]:
        """Inside, a request runs that nobody displaces; on leaving, its client is gone."""
        body = {**_body("holder", ENDLESS, {"priority": -1000}), "stream": True}
        with self._http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data:")
            yield

    def close(self) -> None:
        self._threads.shutdown()
        self._http.close()

    def _running_and_waiting(self) -> tuple[int, int]:
        page = self._http.get("/metrics").text
        running, waiting = (
            re.search(rf"^vllm:num_requests_{state}{{.*}} (\S+)$", page, re.MULTILINE)
            for state in ("running", "waiting")
        )
        assert running and waiting, "the server does not tell how many requests run and wait"
        return int(float(running[1])), int(float(waiting[1]))


def _body(name: str, tokens: int, facts: dict[str, Any]) -> dict[str, Any]:
    priority = facts.pop("priority", None)
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": PROMPTS.get(name, f"Tell me about {name}."),
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if priority is not None:
        body["priority"] = priority
    return body | ({"vllm_xargs": facts} if facts else {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and some policy files."""
    made = tmp_path_factory.mktemp("server")
    make_tiny_model(made / "model")
    for name, text in {
        "policy.yaml": POLICY,
        "faulty.yaml": FAULTY_POLICY,
        "faulty.py": FAULTY,
        "mistaken.yaml": MISTAKEN_POLICY,
    }.items():
        (made / name).write_text(text, encoding="utf-8")
    return made


# All are started at once, since there is much to wait for in a start.
@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[dict[str, Server]]:
    model = folder / "model"
    by_option = json.dumps({"batchpolicy": str(folder / "faulty.yaml")})
    with (
        Server(
            model, folder / "good.log", *SCHEDULER, BATCHPOLICY_CONFIG=str(folder / "policy.yaml")
        ) as good,
        Server(
            model, folder / "faulty.log", *SCHEDULER, "--additional-config", by_option
        ) as faulty,
        Server(
            model,
            folder / "mistaken.log",
            *SCHEDULER,
            BATCHPOLICY_CONFIG=str(folder / "mistaken.yaml"),
        ) as mistaken,
    ):
        yield {"good": good, "faulty": faulty, "mistaken": mistaken}


@pytest.fixture(scope="module")
def reference(folder: Path, servers: dict[str, Server]) -> dict[str, list[int]]:
    """Tokens of each prompt from vLLM by itself, while the servers start."""
    given = json.dumps([str(folder / "model"), dict(ENGINE_ARGUMENTS), PROMPTS])
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE.format(tokens=TOKENS), given],
        capture_output=True,
        text=True,
        env=environment({}),
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
    assert lines, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, list[int]] = json.loads(lines[0].removeprefix("TOKENS "))
    return found


def client_of(server: Server) -> Iterator[Client]:
    server.wait_until_ready()
    made = Client(server)
    yield made
    made.close()


@pytest.fixture
def client(servers: dict[str, Server]) -> Iterator[Client]:
    yield from client_of(servers["good"])


@pytest.fixture
def faulty_client(servers: dict[str, Server]) -> Iterator[Client]:
    yield from client_of(servers["faulty"])


def queue_up(client: Client, requests: dict[str, dict[str, Any]]) -> list[str]:
    """Names in the order of their answers, when all have queued in the order given."""
    answers: list[Future[list[int]]] = []
    with client.holding_the_seat():
        for name, facts in requests.items():
            answers.append(client.start(name, SPACED, **facts))
            client.wait_for(running=1, waiting=len(answers))
    for answer in answers:
        answer.result()
    return client.finished


def test_the_more_urgent_priority_is_answered_first(client: Client) -> None:
    asked = {"five": 5, "three": 3, "zero": 0, "four": 4}
    order = queue_up(client, {name: {"priority": p} for name, p in asked.items()})
    assert order == ["zero", "three", "four", "five"]


def test_a_tenant_does_not_wait_behind_the_backlog_of_another(client: Client) -> None:
    asked = {"a0": "a", "a1": "a", "a2": "a", "b0": "b"}
    order = queue_up(client, {name: {"tenant": tenant} for name, tenant in asked.items()})
    # Both start even; after a0 the account of a is the higher one, after b0 they are even.
    assert order == ["a0", "b0", "a1", "a2"]


def test_a_request_with_a_target_goes_before_those_without(client: Client) -> None:
    # A target that passes on a slow machine would count no more.
    order = queue_up(client, {"idle": {}, "later": {}, "due": {"ttft_slo_s": 60}})
    assert order == ["due", "idle", "later"]


def test_an_urgent_request_takes_the_seat_and_nobody_loses_a_token(
    client: Client, reference: dict[str, list[int]]
) -> None:
    long = client.start("long", LONG, priority=10)
    client.wait_for(running=1, waiting=0)
    assert client.complete("one", priority=0) == reference["one"]
    assert not long.done()
    again = client.complete("long", LONG, priority=0)
    assert long.result() == again


def test_tokens_are_those_of_vllm_by_itself(
    client: Client, reference: dict[str, list[int]]
) -> None:
    answers = {
        name: client.start(name, priority=i % 3, tenant=f"t{i % 2}", ttft_slo_s=0.5)
        for i, name in enumerate(PROMPTS)
    }
    assert {name: answer.result() for name, answer in answers.items()} == reference


@pytest.mark.parametrize(
    "facts",
    [
        {"tenant": [1]},
        {"tenant": 1.5},
        {"ttft_slo_s": "soon"},
        {"ttft_slo_s": -1},
        {"tpot_slo_s": ["a", "b"]},
        {"weight": 0},
        {"weight": "heavy"},
        {"priority": 10**15},
        {"priority": -(10**15)},
    ],
)
def test_a_value_that_cannot_be_used_fails_no_request(
    client: Client, facts: dict[str, Any]
) -> None:
    client.complete("anything", 3, **facts)


def test_the_log_tells_which_policy_is_in_force(
    client: Client, servers: dict[str, Server]
) -> None:
    assert "batchpolicy: policy policy, preempt class" in servers["good"].output
    assert "Traceback" not in servers["good"].output


def test_a_policy_that_fails_in_mid_run_stops_no_request(
    faulty_client: Client, servers: dict[str, Server], reference: dict[str, list[int]]
) -> None:
    for _ in range(3):
        answers = {name: faulty_client.start(name, tenant="t") for name in PROMPTS}
        assert {name: answer.result() for name, answer in answers.items()} == reference
    output = servers["faulty"].output
    assert "batchpolicy: policy faulty, preempt class" in output
    assert output.count("RuntimeError: the policy lost its way") == 1
    assert "Faulty failed; requests are served in order of arrival until it recovers" in output


def test_a_server_with_a_mistaken_policy_file_does_not_start_and_names_the_mistakes(
    servers: dict[str, Server],
) -> None:
    server = servers["mistaken"]
    assert server.wait_until_it_gives_up() != 0
    for mistake in ("lamda", "10 parsecs", "preemt"):
        assert mistake in server.output
