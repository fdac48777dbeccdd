"""A replay without a model takes the very batches that SGLang takes with one."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from typing import Any

import pytest

from batchpolicy.config import PolicyConfig, config_named
from batchpolicy.engine import StepRecord
from batchpolicy.replay import Books, Clock
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sglang.attach import attach
from batchpolicy_sglang.clients import Clients
from batchpolicy_sglang.driver import Driver
from batchpolicy_sglang.front import Front
from batchpolicy_sglang.loop import Loop
from batchpolicy_sglang.model import make_scheduler
from tests.support.sglang_replays import AMPLE, COST, plain, serve

pytestmark = pytest.mark.engine

LIMITS = replace(AMPLE, max_num_seqs=6, kv_blocks=60, max_model_len=400, prefix_cache=True)
LEAST_STEPS = 700


def requests() -> list[WorkloadRequest]:
    """Bursts with shared prefixes, of three classes, more than there is room for."""
    rng = random.Random(3)
    return [
        plain(
            f"r{i:03}",
            0.03 * i,
            rng.randint(20, 220),
            rng.randint(2, 60),
            priority=rng.choice([0, 5, 9]),
            prefix_id=rng.choice("abc"),
            prefix_tokens=48,
        )
        for i in range(120)
    ]


def with_model(wanted: list[WorkloadRequest], overlap: bool, config: PolicyConfig | None) -> Any:
    """Steps and answers of SGLang with its model, which says itself where an answer ends."""
    workload = Workload("real", tuple(wanted))
    limits = replace(LIMITS, async_scheduling=overlap)
    clock, books, steps = Clock(), Books(workload), list[StepRecord]()
    scheduler = make_scheduler(limits, lambda message: loop.told(message))
    forward = scheduler.model_worker.forward_batch_generation
    if config is not None:
        arrivals = {r.id: r.arrival_s for r in workload.requests}
        attach(scheduler, Driver(scheduler, config, clock, arrival_s_of=arrivals.__getitem__))
    clients = Clients(workload, prefix_cache=True, seed=0, planned=config is not None)
    front = Front(workload, limits, native=config is None)
    loop = Loop(scheduler, books, clock, COST, clients, front)
    # Token ids of the prompts are no words of its vocabulary.
    loop._clients = _Small(clients)
    scheduler.model_worker.forward_batch_generation = forward
    loop.run(100_000, steps.append)
    return steps, books.output.tolist()


class _Small:
    """The same messages with token ids that the model knows, alike where they were alike."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def request(self, r: WorkloadRequest) -> Any:
        message = self._clients.request(r)
        for i, token in enumerate(message.input_ids):
            message.input_ids[i] = 10 + zlib.crc32(str(token).encode()) % 117
        return message


@pytest.mark.parametrize("policy", [None, "benefit"])
@pytest.mark.parametrize("overlap", [False, True])
def test_batches_are_those_of_the_engine_with_its_model(overlap: bool, policy: str | None) -> None:
    config = None if policy is None else config_named(policy)
    wanted = requests()
    real, answers = with_model(wanted, overlap, config)
    same = [replace(r, output_tokens=n) for r, n in zip(wanted, answers, strict=True)]
    replayed = serve(same, replace(LIMITS, async_scheduling=overlap), config)
    assert [dict(s.tokens) for s in replayed.steps] == [dict(s.tokens) for s in real]
    assert [s.start_s for s in replayed.steps] == [s.start_s for s in real]
    assert sum(bool(s.tokens) for s in real) >= LEAST_STEPS
    assert replayed.run.cached_tokens.sum() > 0
