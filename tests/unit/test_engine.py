from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpolicy.engine import Run
from batchpolicy.requests import Status
from batchpolicy.workload import Workload, WorkloadRequest

WORKLOAD = Workload(
    "w",
    tuple(
        WorkloadRequest(
            id=f"r{i}", arrival_s=float(i), prompt_tokens=10, output_tokens=5, max_tokens=5
        )
        for i in range(2)
    ),
)
RUN = Run(
    workload=WORKLOAD,
    engine="some",
    policy="fcfs",
    status=np.full(2, int(Status.FINISHED)),
    first_scheduled_s=np.array([0.0, 1.0]),
    first_token_s=np.array([0.5, np.nan]),
    finished_s=np.array([2.0, 3.0]),
    longest_gap_s=np.zeros(2),
    output_tokens=np.array([5, 5]),
    cached_tokens=np.zeros(2, dtype=np.int64),
    preemptions=np.zeros(2, dtype=np.int64),
    recomputed_tokens=np.zeros(2, dtype=np.int64),
    steps=10,
    end_s=3.0,
    peak_waiting=1,
)
COLUMNS = [
    "status", "first_scheduled_s", "first_token_s", "finished_s", "longest_gap_s",
    "output_tokens", "cached_tokens", "preemptions", "recomputed_tokens",
]  # fmt: skip


def test_runs_that_went_the_same_way_have_equal_digests_under_any_name() -> None:
    columns = {name: getattr(RUN, name).copy() for name in COLUMNS}
    again = replace(RUN, policy="the same by another name", **columns)
    assert again.digest() == RUN.digest()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_change_in_any_column_changes_the_digest(name: str) -> None:
    changed = getattr(RUN, name).copy()
    changed[1] = 4
    assert replace(RUN, **{name: changed}).digest() != RUN.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 11},
        {"end_s": np.nextafter(3.0, 4.0)},
        {"workload": WORKLOAD.stretched(2.0)},
    ],
)
def test_a_change_of_the_whole_changes_the_digest(change: dict[str, Any]) -> None:
    assert replace(RUN, **change).digest() != RUN.digest()
