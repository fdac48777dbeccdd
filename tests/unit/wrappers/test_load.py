from __future__ import annotations

import math

import numpy as np
import pytest

from batchpolicy.policy import Step, Work
from batchpolicy.requests import Requests, Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from batchpolicy.wrappers.load import Load, LoadMeter


def told(*jobs: tuple[str, int, int]) -> tuple[RequestTable, Requests]:
    """A table with requests of these names, prompts and priorities."""
    table = RequestTable()
    for name, prompt, priority in jobs:
        table.add(name, arrival_s=0.0, prompt_tokens=prompt, max_tokens=100, priority=priority)
    return table, table.view()


def step(**changes: int) -> Step:
    """Of an engine with ten seats and a cache of 1,000 tokens."""
    facts = {"max_running": 10, "total_kv_blocks": 100, "kv_block_tokens": 10, **changes}
    return make_step(**facts)  # type: ignore[arg-type]


def work(prefill: list[int], output: list[int]) -> Work:
    return Work(np.array(prefill), np.array(output), 1, 0.1)


def test_the_average_moves_by_age_and_starts_with_what_is_there() -> None:
    meter, (table, rows) = LoadMeter(), told(("a", 10, 0), ("b", 10, 5))
    assert not meter.advance(50.0, 10.0)
    assert meter.load(step()) == Load(0.0, 0.0, 0.0)
    meter.arrived(rows, 0)
    # Two of ten seats since it began, one of them urgent.
    assert meter.advance(55.0, 10.0)
    assert meter.load(step()) == pytest.approx((0.2, 0.0, 0.5))
    assert not meter.advance(55.0, 10.0)
    meter.finished(table.rows(np.array([table.slots["b"]])))
    meter.advance(65.0, 10.0)
    # The first 5 s are 10 s old by now.
    old, new = (1 - math.exp(-0.5)) * math.exp(-1), 1 - math.exp(-1)
    expected = (2 * old + new) / (old + new)
    assert meter.load(step()) == pytest.approx((expected / 10, 0.0, (old + new) / (2 * old + new)))


def test_kv_counts_where_it_is_fuller_than_the_seats() -> None:
    meter, (_, rows) = LoadMeter(), told(("a", 600, 0))
    meter.advance(0.0, 10.0)
    meter.arrived(rows, 0)
    meter.computed(rows, work([600], [150]))
    meter.advance(1.0, 10.0)
    assert meter.load(step()).load == pytest.approx(0.75)
    assert meter.load(step(total_kv_blocks=5000)).load == pytest.approx(0.1)


def test_the_share_of_prompts_is_of_what_was_computed_lately() -> None:
    meter, (_, rows) = LoadMeter(), told(("a", 90, 0), ("b", 30, 0))
    meter.advance(0.0, 10.0)
    meter.arrived(rows, 0)
    meter.computed(rows, work([90, 0], [10, 20]))
    meter.advance(1.0, 10.0)
    assert meter.load(step()).prompt_frac == pytest.approx(90 / 120)
    meter.computed(rows, work([0, 30], [0, 0]))
    meter.advance(11.0, 10.0)
    # The first 120 are 11 s old, the last 30 count as 10 s old.
    first, last = math.exp(-1.1), math.exp(-1.0)
    expected = (90 * first + 30 * last) / (120 * first + 30 * last)
    assert meter.load(step()).prompt_frac == pytest.approx(expected)


def test_nothing_is_left_of_who_ended_however_it_ended() -> None:
    meter, (table, rows) = LoadMeter(), told(("a", 90, 0), ("b", 30, 9))
    meter.advance(0.0, 10.0)
    meter.arrived(rows, 0)
    meter.computed(rows, work([9, 0], [1, 1]))
    # The column runs ahead of what was told, as where results are in flight.
    table.set("a", output_tokens=7, status=int(Status.ABORTED))
    meter.finished(rows)
    meter.advance(1000.0, 10.0)
    meter.advance(2000.0, 10.0)
    assert meter.load(step()).load == pytest.approx(0.0, abs=1e-40)
