"""Random traffic under ``benefit`` with displacement, columns compared on the way."""

from __future__ import annotations

from collections import Counter

import pytest

from batchpolicy_vllm import seams
from tests.support.vllm_bench import Bench, assert_served, play
from tests.support.vllm_replays import (
    BENEFIT,
    EVERY_LIMITS,
    GREEDY,
    assert_no_fault,
    random_workload,
    seeds,
)

pytestmark = pytest.mark.engine

SEEDS = seeds(60, 100)


def played(seed: int, base: type, in_flight: int) -> Bench:
    limits = EVERY_LIMITS[seed % len(EVERY_LIMITS)]
    config = GREEDY if seed % 2 else BENEFIT
    bench = Bench(limits, config, base=base, in_flight=in_flight)
    workload = random_workload(seed)
    # Between two looks, the runner may only count the steps in which all goes on as before.
    play(bench, workload, look_every=1 + seed % 7)
    assert_served(bench, workload.requests)
    return bench


@pytest.mark.parametrize(
    ("base", "in_flight"),
    [(seams.Scheduler, 1), (seams.AsyncScheduler, 1), (seams.AsyncScheduler, 2)],
    ids=["sync", "async-1", "async-2"],
)
def test_every_answer_is_whole_the_columns_stay_true_and_nothing_fails(
    base: type, in_flight: int
) -> None:
    counted: Counter[str] = Counter()
    for seed in SEEDS:
        bench = played(seed, base, in_flight)
        assert_no_fault(bench.counters)
        assert len(bench.driver.runner._ledger.table) == 0, "ended requests are forgotten"
        counted.update(bench.counters)
    # The traffic is of a kind that displaces for classes and for want of blocks.
    assert counted["displaced"] > 0.8 * len(SEEDS)
    assert counted["preempted"] > counted["displaced"] + 0.4 * len(SEEDS)
