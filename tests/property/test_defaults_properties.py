"""What is known to be at its default is not looked at, and changes no answer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.deadlines import meetable, next_due_s
from batchpolicy.policies.benefit import Benefit
from batchpolicy.requests import COLUMNS, NEVER_STARTED, QUANTILES, Requests
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from batchpolicy.work_left import output_to_come, work_left

OPTIONAL: Mapping[str, st.SearchStrategy[float]] = {
    "priority": st.integers(-2, 2),
    "weight": st.sampled_from([0.5, 1.0, 4.0]),
    "ttft_slo_s": st.sampled_from([0.5, 5.0, np.inf]),
    "deadline_s": st.sampled_from([5.0, 50.0, np.inf]),
    "predicted_output_tokens": st.sampled_from([1.0, 90.0, np.nan]),
}


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    used = draw(st.sets(st.sampled_from(sorted(OPTIONAL))))
    table = RequestTable()
    table.now_s = 10.0
    for i in range(draw(st.integers(1, 12))):
        table.add(
            f"r{i}",
            arrival_s=draw(st.sampled_from([0.0, 4.0, 9.9])),
            tenant=draw(st.integers(-1, 2)),
            prompt_tokens=draw(st.integers(1, 5000)),
            max_tokens=100,
            **{name: draw(OPTIONAL[name]) for name in sorted(used)},
        )
    return table


def both(table: RequestTable) -> tuple[Requests, Requests]:
    """A view that knows what is at its default, and one that has to look."""
    slots = table.view().slot
    knows = table.rows(slots, never_started=True)
    return knows, Requests(table.columns, slots, table.ids, table.now_s)


@given(tables())
def test_columns_at_their_default_are(table: RequestTable) -> None:
    knows, _ = both(table)
    for name, (_, default) in COLUMNS.items():
        if knows.at_default(name):
            column = table.columns[name][knows.slot]
            assert np.array_equal(column, np.full(len(knows), default), equal_nan=True)


@given(tables())
def test_a_view_that_knows_gives_the_same_answers(table: RequestTable) -> None:
    knows, looks = both(table)
    step = make_step(now_s=10.0, waiting=looks, running=looks.take(np.empty(0, np.intp)))
    policy = Benefit()
    policy.on_arrived(looks, step)
    for read in (
        lambda rows: rows.prefill_tokens,
        lambda rows: rows.next_token_due_s,
        lambda rows: output_to_come(rows, step),
        lambda rows: work_left(rows, step, 2.0),
        lambda rows: next_due_s(rows, step),
        lambda rows: meetable(rows, step).due_s,
        lambda rows: meetable(rows, step).lost,
        policy.fairness.price_of_admission,
        lambda rows: policy.benefit(rows, step),
    ):
        np.testing.assert_array_equal(read(knows), read(looks))


def test_columns_that_start_to_differ_are_looked_at_again() -> None:
    table = RequestTable()
    table.add("a")
    assert table.view().at_default("priority", "deadline_s")
    table.add("b", priority=3)
    assert not table.view().at_default("priority")
    assert not table.view().at_default("priority", "deadline_s")
    table.set("a", deadline_s=5.0)
    assert not table.view().at_default("deadline_s")
    table.remove("b")
    assert not table.view().at_default("priority")


def test_of_preemptions_none_are_known_until_the_first() -> None:
    table = RequestTable()
    slots = np.array([table.add("a"), table.add("b")])
    assert table.rows(slots).at_default("preemptions")
    table.set("a", preemptions=1)
    table.set("a", preemptions=0)
    assert not table.rows(slots).at_default("preemptions")
    assert table.rows(slots[1:], never_started=True).at_default("preemptions")


@pytest.mark.parametrize("name", sorted(NEVER_STARTED - {"preemptions"}))
def test_only_who_never_ran_is_known_to_have_computed_nothing(name: str) -> None:
    table = RequestTable()
    slots = np.array([table.add("a")])
    assert not table.rows(slots).at_default(name)
    assert table.rows(slots, never_started=True).at_default(name)
    assert QUANTILES not in COLUMNS
