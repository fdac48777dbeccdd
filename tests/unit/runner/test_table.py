from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.requests import COLUMNS
from batchpolicy.runner.codes import Codes
from batchpolicy.runner.table import RequestTable, SlotSet


def test_columns_that_are_not_named_take_their_defaults() -> None:
    table = RequestTable()
    table.add("a", priority=3)
    row = table.view()
    assert row.priority.tolist() == [3]
    for name in sorted(set(COLUMNS) - {"priority", "slot", "seq"}):
        expected = [COLUMNS[name][1]]
        np.testing.assert_array_equal(getattr(row, name), expected, err_msg=name)


def test_a_new_request_in_a_used_slot_keeps_nothing_of_the_old_one() -> None:
    table = RequestTable()
    old = table.add("old", priority=3, ttft_slo_s=1.0, output_tokens=7)
    table.remove("old")
    assert table.add("new") == old
    row = table.view()
    assert row.request_id == ["new"]
    assert (row.priority[0], row.ttft_slo_s[0], row.output_tokens[0]) == (0, np.inf, 0)
    assert row.seq.tolist() == [1]


def test_the_row_of_a_forgotten_request_stays_readable_until_its_slot_is_released() -> None:
    table = RequestTable(capacity=1)
    slot = table.add("gone", priority=5)
    table.forget("gone")
    assert "gone" not in table
    assert table.add("next") != slot
    assert table.rows(np.array([slot])).priority.tolist() == [5]


def test_a_full_table_grows_and_views_taken_before_stay_true() -> None:
    table = RequestTable(capacity=1)
    table.add("r0", priority=0)
    before = table.view()
    for i in range(1, 100):
        table.add(f"r{i}", priority=i)
    table.set("r0", priority=-9)
    assert before.priority.tolist() == [-9]
    assert table.view().priority.tolist() == [-9, *range(1, 100)]
    assert sorted(table.view().slot.tolist()) == list(range(100))


def test_an_id_cannot_be_added_twice_and_a_column_has_to_exist() -> None:
    table = RequestTable()
    table.add("a")
    with pytest.raises(KeyError, match="'a' is already in the table"):
        table.add("a")
    with pytest.raises(TypeError, match="unknown columns: colour"):
        table.add("b", colour=1)
    assert len(table) == 1


def test_columns_of_a_view_cannot_be_written_to() -> None:
    table = RequestTable()
    table.add("a")
    with pytest.raises(ValueError, match="read-only"):
        table.view().priority[0] = 1


def test_taking_rows_by_number_or_mask_narrows_a_view() -> None:
    table = RequestTable()
    for i in range(4):
        table.add(f"r{i}", priority=i)
    rows = table.view()
    assert rows.take(np.array([3, 1])).request_id == ["r3", "r1"]
    assert rows.take(rows.priority > 1).take(np.array([1])).request_id == ["r3"]
    assert len(rows.take(np.array([], dtype=np.intp))) == 0


def test_a_prefill_is_what_has_to_be_computed_before_the_next_token() -> None:
    table = RequestTable()
    cases: dict[str, tuple[dict[str, float], int]] = {
        "waiting": ({}, 100),
        "waiting with a hit": ({"cached_tokens": 60}, 40),
        "in its first chunk": ({"computed_tokens": 30, "cached_tokens": 20}, 70),
        "all but one token": ({"computed_tokens": 99}, 1),
        "first token in flight": ({"computed_tokens": 100}, 0),
        "decoding": ({"computed_tokens": 102, "output_tokens": 3}, 0),
        "decoding, a step ahead": ({"computed_tokens": 104, "output_tokens": 3}, 0),
        "preempted": ({"output_tokens": 3, "preemptions": 1}, 103),
        "recomputing": ({"computed_tokens": 50, "output_tokens": 3}, 53),
    }
    for name, (facts, _) in cases.items():
        table.add(name, prompt_tokens=100, **facts)
    found = dict(zip(table.view().request_id, table.view().prefill_tokens.tolist(), strict=True))
    assert found == {name: expected for name, (_, expected) in cases.items()}


def test_output_still_to_come_is_predicted_or_up_to_the_ceiling_and_at_least_one() -> None:
    table = RequestTable()
    table.add("predicted", max_tokens=100, predicted_output_tokens=30.0, output_tokens=10)
    table.add("unknown", max_tokens=100, output_tokens=10)
    table.add("longer than predicted", predicted_output_tokens=30.0, output_tokens=50)
    assert table.view().remaining_output_tokens.tolist() == [20.0, 90.0, 1.0]


def test_the_next_token_is_due_by_ttft_and_then_by_the_mean_time_per_token() -> None:
    table = RequestTable()
    slo = {"arrival_s": 10.0, "ttft_slo_s": 2.0, "tpot_slo_s": 0.5}
    table.add("waits", **slo)
    table.add("has 1", first_token_s=11.0, output_tokens=1, **slo)
    table.add("has 4", first_token_s=11.0, output_tokens=4, **slo)
    table.add("no target", arrival_s=10.0, first_token_s=11.0, output_tokens=4)
    table.add("no target, waits", arrival_s=10.0)
    assert table.view().next_token_due_s.tolist() == [12.0, 11.5, 13.0, np.inf, np.inf]


def test_a_wait_ends_with_the_first_start() -> None:
    table = RequestTable()
    table.now_s = 10.0
    table.add("waits", arrival_s=4.0)
    table.add("ran", arrival_s=4.0, first_scheduled_s=5.5)
    assert table.view().queue_s.tolist() == [6.0, 1.5]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 90)), max_size=300))
def test_a_slot_set_holds_what_a_set_would(changes: list[tuple[bool, int]]) -> None:
    slots, expected = SlotSet(), set[int]()
    for add, slot in changes:
        if add:
            slots.add(slot, slot % 3)
            expected.add(slot)
        else:
            assert slots.discard(slot) == (slot in expected)
            expected.discard(slot)
        assert len(slots) == len(expected)
    assert sorted(slots.array().tolist()) == sorted(expected)
    assert all((slot in slots) == (slot in expected) for slot in range(91))
    if expected:
        assert slots.most_urgent == min(slot % 3 for slot in expected)
        assert slots.least_urgent == max(slot % 3 for slot in expected)


def test_a_slot_set_grows() -> None:
    slots = SlotSet()
    for slot in range(500):
        slots.add(slot, 0)
    assert slots.array().tolist() == list(range(500))


def test_names_get_codes_in_order_of_appearance_and_late_ones_share_one() -> None:
    codes = Codes(limit=2)
    assert [codes(name) for name in ("b", "a", "b", "", "c", "d", "a")] == [0, 1, 0, -1, 2, 2, 1]
