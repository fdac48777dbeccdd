from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpolicy.policies.virtual_token_counter import VirtualTokenCounter
from batchpolicy.policy import MOST_TIERS, Ranking
from batchpolicy.runner.order import best_first
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from batchpolicy.testing.compare import Scene, scene, scene_of
from batchpolicy.wrappers.tiered import Tiered
from tests.support.policies import Arrival, Patched, Shortest


def at_priorities(*priorities: int, **columns: list[Any]) -> Scene:
    table = RequestTable()
    table.now_s = 100.0
    for i, priority in enumerate(priorities):
        more = {name: values[i] for name, values in columns.items()}
        facts = {"arrival_s": 99.0, "prompt_tokens": 10, **more}
        table.add(f"r{i}", priority=priority, **facts)
    return scene_of(table)


def order(policy: Tiered, at: Scene) -> list[int]:
    got = policy.rank(at.waiting, at.step)
    found = best_first(got.benefit, got.tier, at.waiting.seq, len(at.waiting))
    if got.admissible is not None:
        found = found[got.admissible[found]]
    rows: list[int] = found.tolist()
    return rows


def test_priorities_up_to_each_bound_are_a_class() -> None:
    at = at_priorities(6, 5, 1, 0, -7)
    tiers = Tiered(up_to=(0, 5)).tier(at.waiting, at.step)
    assert tiers.tolist() == [2 * MOST_TIERS, MOST_TIERS, MOST_TIERS, 0, 0]


def test_classes_go_one_after_another_each_in_the_order_inside() -> None:
    at = at_priorities(1, 0, 1, 0, prompt_tokens=[1, 40, 2, 30])
    assert order(Tiered(inner=Shortest()), at) == [3, 1, 0, 2]


def test_tiers_inside_hold_inside_each_class() -> None:
    def tier(rows: Any, step: Any) -> Any:
        return (rows.prompt_tokens > 10).astype(np.int64)

    inner = Patched.over(Arrival(), tier=tier)
    at = at_priorities(1, 0, 1, 0, prompt_tokens=[20, 20, 5, 5])
    assert order(Tiered(inner=inner), at) == [3, 1, 2, 0]


def test_each_class_is_ranked_as_if_nobody_else_waited() -> None:
    """Of rows that are passed, helpers take the order of submission from ``step.waiting``."""
    tenants = [7, 1, 7, 2, 2, 1]
    at = at_priorities(1, 0, 1, 0, 0, 1, tenant=tenants)
    policy = Tiered(inner=VirtualTokenCounter())
    # In class 0 the tenants 1, 2, 2; in class 1 7, 7, 1, by turns.
    assert order(policy, at) == [1, 3, 4, 0, 5, 2]


def test_what_is_held_refused_or_timed_in_a_class_stays_so() -> None:
    def rank(rows: Any, step: Any) -> Ranking:
        assert len(rows) == len(step.waiting)
        if rows.priority[0] == 0:
            return Ranking(np.zeros(len(rows)), refuse=rows.seq == 3, wake_s=200.0)
        return Ranking(np.zeros(len(rows)), admissible=rows.seq == 0, wake_s=150.0)

    at = at_priorities(1, 0, 1, 0)
    got = Tiered(inner=Patched.over(Arrival(), rank=rank)).rank(at.waiting, at.step)
    assert got.admissible is not None
    assert got.refuse is not None
    assert got.admissible.tolist() == [True, True, False, True]
    assert got.refuse.tolist() == [False, False, False, True]
    assert got.wake_s == 150.0


@pytest.mark.parametrize("n", [0, 1, 40])
def test_it_equals_a_slow_one_that_sorts_by_class_then_order(n: int) -> None:
    at = scene(n + 8, running=8)
    rows = at.waiting
    keys = [(max(p, 0), t, s) for p, t, s in zip(
        rows.priority.tolist(), rows.prompt_tokens.tolist(), rows.seq.tolist(), strict=True
    )]  # fmt: skip
    # Classes: up to 0, then 1, 2 and 3 alone.
    expected = sorted(range(n), key=lambda row: keys[row])
    assert order(Tiered(up_to=(0, 1, 2), inner=Shortest()), at) == expected


def test_running_rows_have_the_class_of_waiting_ones() -> None:
    at = scene()
    policy = Tiered(inner=Shortest())
    step = make_step(waiting=at.waiting, running=at.running)
    waiting = policy.rank(at.waiting, step).tier
    assert waiting is not None
    assert waiting.tolist() == policy.tier(at.waiting, step).tolist()
