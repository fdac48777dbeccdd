"""The light engine takes the steps of vLLM's own scheduler, to the last block and time."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from batchpolicy_tuning.conformance.comparison import Compare, Compared
from batchpolicy_tuning.conformance.coverage import KINDS
from batchpolicy_tuning.conformance.report import lines
from batchpolicy_tuning.conformance.workloads import random_problem
from batchpolicy_vllm.replay import VllmReplay
from tests.support.vllm_replays import seeds

pytestmark = pytest.mark.engine

WORKLOADS = seeds(200)
RARE = {
    "refusals": 0.02,
    "displacement": 0.2,
    "whole prompts only": 0.05,
    "limits of a policy's own": 0.1,
    "all held while nothing ran": 0.01,
}
"""In what part of the workloads each of ``KINDS`` is seen at least, where that is not 0.2."""


@functools.cache
def engine() -> VllmReplay:
    return VllmReplay()


@functools.cache
def compared(seed: int) -> Compared:
    return Compare(functools.partial(random_problem, seed))(engine())


@pytest.mark.parametrize("seed", WORKLOADS)
def test_every_step_and_every_time_is_that_of_vllm(seed: int) -> None:
    one = compared(seed)
    assert one.difference is None, "\n".join(lines([one], "vllm", engine().version))
    assert one.left_out == ""


def test_the_workloads_bring_out_what_is_compared() -> None:
    seen = Counter(kind for seed in WORKLOADS for kind in compared(seed).covered)
    least = {kind: RARE.get(kind, 0.2) * len(WORKLOADS) for kind in KINDS}
    assert {kind: seen[kind] for kind in KINDS if seen[kind] < least[kind]} == {}
