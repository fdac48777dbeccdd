"""Promises of policies that hold requests back."""

from __future__ import annotations

import math

import numpy as np

from batchpolicy.policy import Policy
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing.compare import copy_of, fail, scene_of

_MOST_WAKES = 100


def check_a_hold_ends(policy: Policy) -> None:
    """While nothing runs, who holds all requests back says until when, and means it.

    Else the engine stands still; the runner then lets the oldest go and counts it as
    ``forced``.
    """
    for n in (1, 5):
        table = RequestTable()
        table.now_s = 100.0
        for i in range(n):
            table.add(
                f"r{i}", arrival_s=table.now_s, tenant=i, prompt_tokens=200, max_tokens=100,
                ttft_slo_s=2.0, need_kv_blocks=13,
            )  # fmt: skip
        at = scene_of(table)
        lived = copy_of(policy)
        lived.on_arrived(at.waiting, at.step)
        for _ in range(_MOST_WAKES):
            got = lived.rank(at.waiting, at.step)
            could = np.ones(n, np.bool_) if got.admissible is None else got.admissible
            if could.any() or (got.refuse is not None and got.refuse.all()):
                break
            if not table.now_s < got.wake_s < math.inf:
                fail(policy, "rank", f"holds all {n} requests, nothing runs, wake_s {got.wake_s}")
            table.now_s = got.wake_s
            at = scene_of(table)
        else:
            fail(policy, "rank", f"holds all {n} requests after {_MOST_WAKES} times of wake_s")
