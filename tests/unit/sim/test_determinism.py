from __future__ import annotations

import os
import subprocess
import sys

import pytest

RUN = """
from batchpolicy.config import Memory, config_named
from batchpolicy.workload import Workload
from tests.unit.sim.light import Served, request
served = Served(
    *[
        request(
            f"r{i}", 5 + 7 * i % 40, 1 + 5 * i % 30, 0.7 * (i // 3), tenant=f"t{i % 4}",
            priority=5 * (i % 2), prefix_id="abc"[i % 3], prefix_tokens=16,
        )
        for i in range(60)
    ],
    config=config_named("benefit").model_copy(update={"memory": Memory(look_ahead=False)}),
    prefix_cache=True, kv_blocks=16, max_num_batched_tokens=24,
)
print(served.run.digest(), sum(len(step.preempted) for step in served.steps))
"""


@pytest.mark.slow
def test_two_processes_come_to_the_same_bytes_however_they_hash_texts() -> None:
    said = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, "-c", RUN]
        said.append(subprocess.check_output(command, env=environment, text=True).split())
    assert said[0] == said[1]
    assert int(said[0][1]) > 5
