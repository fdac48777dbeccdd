from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.config import Memory
from batchpolicy.runner.peak import expected_left, peak
from batchpolicy.runner.table import RequestTable
from tests.support.policies import Arrival
from tests.support.rig import Rig


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=8))
def test_the_peak_is_the_most_that_a_step_by_step_count_finds(rows: list[tuple[int, int]]) -> None:
    own, left = (np.array([row[i] for row in rows], dtype=np.float64) for i in (0, 1))
    # Each takes a token in each of its steps, and all that it has is back after the last.
    counted = [
        sum(float(held + step) for held, to_come in rows if to_come >= step) for step in range(31)
    ]
    assert peak(own, left) == max(counted)


def test_what_is_left_follows_the_prediction_or_the_age_and_ends_at_the_ceiling() -> None:
    table = RequestTable()
    table.add("predicted", predicted_output_tokens=50.0, output_tokens=20, max_tokens=100)
    table.add("high", predicted_output_tokens=50.0, predicted_output_high=80.0, max_tokens=100)
    table.add("outlived it", predicted_output_tokens=50.0, output_tokens=60, max_tokens=100)
    table.add("as old", output_tokens=30, max_tokens=100)
    table.add("nearly at its end", output_tokens=90, max_tokens=100)
    table.add("new", max_tokens=4000)
    left = expected_left(table.view())
    assert left[:5].tolist() == [30.0, 80.0, 0.0, 30.0, 10.0]
    assert np.isnan(left[5])


def full(*, look_ahead: bool = True, **facts: float) -> Rig:
    """Two rows of 30 tokens, 10 of them put out, of a cache of 100 tokens."""
    rig = Rig(Arrival(), parts={"memory": Memory(look_ahead=look_ahead)}, total_kv_blocks=10)
    rig.running("a", "b", prompt=20, **facts)
    for _ in range(9):
        rig.plan(blocks=5)
        rig.decode("a", "b")
    rig.arrive("c", prompt=30)
    return rig


def test_nobody_starts_who_would_not_fit_once_answers_have_doubled() -> None:
    # 29 tokens each and 10 to come, and 30 of c, which may put out 20 as the others do.
    assert full().plan(blocks=4).admit == []
    assert full(look_ahead=False).plan(blocks=4).admit == ["c"]


def test_who_waits_for_memory_to_come_free_starts_when_it_has() -> None:
    rig = full()
    rig.plan(blocks=4)
    rig.runner.finished("a", 2)  # type: ignore[arg-type]
    assert rig.plan(blocks=7).admit == ["c"]


def test_a_prediction_says_that_there_is_room() -> None:
    # One more token of each, though max_tokens is 50.
    assert full(predicted_output_tokens=11.0).plan(blocks=4).admit == ["c"]


def test_a_request_alone_starts_however_much_it_may_grow() -> None:
    rig = Rig(Arrival(), total_kv_blocks=10)
    rig.arrive("large", prompt=90, predicted_output_tokens=50.0)
    assert rig.plan(blocks=10).admit == ["large"]
