from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.state import StateArray


def test_codes_never_seen_hold_the_default_however_large() -> None:
    state = StateArray(default=2.5)
    assert state[np.array([0, -1, 1_000_000])].tolist() == [2.5, 2.5, 2.5]


def test_growing_keeps_every_value_and_that_of_no_code() -> None:
    state = StateArray(default=1.0)
    state[np.array([-1, 0, 63])] = np.array([10.0, 11.0, 12.0])
    state[np.array([64])] = 13.0
    state[np.array([5000])] = 14.0
    codes = np.array([-1, 0, 1, 63, 64, 65, 4999, 5000, 5001])
    assert state[codes].tolist() == [10.0, 11.0, 1.0, 12.0, 13.0, 1.0, 1.0, 14.0, 1.0]


def test_amounts_for_one_code_add_up() -> None:
    state = StateArray()
    state.add(np.array([2, 70, 2, -1, -1]), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    state.add(np.array([2]), 10.0)
    assert state[np.array([2, 70, -1, 0])].tolist() == [14.0, 2.0, 9.0, 0.0]
    state.add(np.tile([70, 200, -1], 20), np.tile([1.0, 2.0, 3.0], 20))
    assert state[np.array([2, 70, 200, -1, 0])].tolist() == [14.0, 22.0, 40.0, 69.0, 0.0]


@pytest.mark.parametrize("n", [2, 40])
@pytest.mark.parametrize("amount", [2.0, np.array(2.0), np.array([2.0])])
def test_one_amount_is_for_all_codes_few_or_many(n: int, amount: Any) -> None:
    state = StateArray()
    state.add(np.arange(n), amount)
    assert state[np.arange(n)].tolist() == [2.0] * n


def test_what_is_taken_off_leaves_the_rest() -> None:
    state = StateArray(default=2.0)
    state.put(3, 9.0)
    left = state.lower(np.array([3, 300, -1]), np.array([4, 5, 0]))
    assert left.tolist() == [5.0, -3.0, 2.0]
    left[:] = 0.0
    assert state[np.array([3, 300, -1, 0])].tolist() == [5.0, -3.0, 2.0, 2.0]


def test_the_least_is_of_codes_that_are_above_zero_in_the_other() -> None:
    values, counts = StateArray(), StateArray()
    assert values.least_where_positive(counts) is None
    values[np.array([70, -1, 3, 5])] = np.array([4.0, 3.0, 2.0, 1.0])
    counts[np.array([70, -1, 3, 900])] = np.array([1.0, 2.0, 1.0, -1.0])
    assert values.least_where_positive(counts) == 2.0
    counts.put(3, 0.0)
    assert values.least_where_positive(counts) == 3.0
    counts.put(900, 1.0)
    assert values.least_where_positive(counts) == 0.0
    assert counts.least_where_positive(values) == 0.0


def test_one_code_reads_and_writes_like_a_column_of_one() -> None:
    state = StateArray(default=2.0)
    assert [state.at(code) for code in (-1, 0, 63, 64, 10**6)] == [2.0] * 5
    state.put(64, 5.0)
    state.put(-1, 6.0)
    assert state[np.array([-1, 63, 64, 65])].tolist() == [6.0, 2.0, 5.0, 2.0]


def test_no_codes_are_no_work() -> None:
    none = np.array([], dtype=np.int64)
    state = StateArray()
    state.add(none, 1.0)
    state[none] = 1.0
    assert state[none].tolist() == []


def test_what_was_read_is_a_copy() -> None:
    state = StateArray()
    state[np.array([0, 1])][0] = 5.0
    assert state[np.array([0])].tolist() == [0.0]


@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.tuples(st.integers(-1, 300), st.integers(-9, 9)))),
        max_size=20,
    )
)
def test_a_state_array_holds_what_a_dictionary_would(
    changes: list[tuple[bool, list[tuple[int, int]]]],
) -> None:
    state, expected = StateArray(), dict[int, float]()
    for add, pairs in changes:
        codes = np.array([code for code, _ in pairs], dtype=np.int64)
        values = np.array([value for _, value in pairs], dtype=np.float64)
        if add:
            state.add(codes, values)
        else:
            state[codes] = values
        for code, value in pairs:
            expected[code] = expected.get(code, 0.0) * add + value
    every = np.arange(-1, 302)
    assert state[every].tolist() == [expected.get(code, 0.0) for code in every.tolist()]
    above = [value for value in expected.values() if value > 0]
    assert state.least_where_positive(state) == (min(above) if above else None)
    assert [state.at(code) for code in every.tolist()] == state[every].tolist()
