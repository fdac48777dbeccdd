from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.config import Memory
from batchpolicy.requests import FloatArray
from batchpolicy.runner.peak import PATHS, Coming, Peak
from tests.support.policies import Arrival
from tests.support.rig import Rig

Rows = list[tuple[int, int]]
"""Tokens held and tokens to come of each."""
ROWS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=8)
MANY = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=40)


def counted(rows: Rows) -> float:
    """The most held at once, by going through all steps."""
    # Each takes a token in each of its steps, and all that it has is back after the last.
    return max(
        sum(float(held + step) for held, left in rows if left >= step) for step in range(1, 31)
    )


def known(rows: Rows) -> tuple[FloatArray, FloatArray]:
    own = np.array([held for held, _ in rows], dtype=np.float64)
    left = np.array([left for _, left in rows], dtype=np.float64)
    return own, np.repeat(left[:, None], PATHS, axis=1)


def peak_of(running: Rows, coming: Rows, most: float, deviations: float = 1.0) -> Peak:
    own, left = known(running)
    return Peak(
        own,
        left,
        lambda first, end: given_left(known(coming)[1][first:end]),
        shared_tokens=0.0,
        most_tokens=most,
        deviations=deviations,
    )


def given_left(left: FloatArray) -> Coming:
    return Coming(left, 0.0)


@given(ROWS)
def test_with_known_lengths_the_peak_is_what_a_step_by_step_count_finds(rows: Rows) -> None:
    assert peak_of(rows, [], 1e9).tokens == counted(rows)


@given(ROWS, MANY, st.integers(0, 900))
def test_candidates_are_taken_just_when_the_count_with_them_fits(
    running: Rows, coming: Rows, most: int
) -> None:
    peak, taken = peak_of(running, coming, most), list(running)
    for place, (own, left) in enumerate(coming):
        fits = not taken or counted([*taken, (own, left)]) <= most
        assert peak.takes(own, place) == fits
        taken += [(own, left)] * fits


@given(
    st.lists(
        st.tuples(
            st.integers(0, 500),
            st.lists(st.integers(1, 400), min_size=PATHS, max_size=PATHS).map(sorted),
        ),
        min_size=1,
        max_size=6,
    ),
    st.floats(-1.0, 4.0),
)
def test_uncertain_lengths_count_by_mean_and_variance_of_each_time(
    rows: list[tuple[int, list[int]]], deviations: float
) -> None:
    own = np.array([held for held, _ in rows], dtype=np.float64)
    left = np.array([paths for _, paths in rows], dtype=np.float64)
    # Half of them run, the others are added one by one.
    half = len(rows) // 2
    peak = Peak(
        own[:half],
        left[:half],
        lambda first, end: given_left(left[half:][first:end]),
        shared_tokens=0.0,
        most_tokens=1e9,
        deviations=deviations,
    )
    for place in range(len(rows) - half):
        assert peak.takes(int(own[half + place]), place)
    slow = 0.0
    for t in {time for _, paths in rows for time in paths}:
        chances = [sum(path >= t for path in paths) / PATHS for _, paths in rows]
        held = [held + t for held, _ in rows]
        mean = sum(h * p for h, p in zip(held, chances, strict=True))
        variance = sum(h * h * p * (1 - p) for h, p in zip(held, chances, strict=True))
        slow = max(slow, min(mean + deviations * variance**0.5, sum(held)))
    assert np.isclose(peak.tokens, slow, rtol=1e-9, atol=1e-3)


def full(*, look_ahead: bool = True, **facts: float) -> Rig:
    """Two rows of 30 tokens, 10 of them put out, of a cache of 100 tokens."""
    rig = Rig(Arrival(), parts={"memory": Memory(look_ahead=look_ahead)}, total_kv_blocks=10)
    rig.running("a", "b", prompt=20, **facts)
    for _ in range(9):
        rig.plan(blocks=5)
        rig.decode("a", "b")
    rig.arrive("c", prompt=30)
    return rig


def test_nobody_starts_who_would_not_fit_if_answers_were_as_long_as_they_may() -> None:
    # 29 tokens each and up to 40 to come, and 30 of c.
    assert full().plan(blocks=4).admit == []
    assert full(look_ahead=False).plan(blocks=4).admit == ["c"]


def test_who_waits_for_memory_to_come_free_starts_when_it_has() -> None:
    rig = full()
    rig.plan(blocks=4)
    rig.runner.finished("a", 2)  # type: ignore[arg-type]
    rig.runner.finished("b", 2)  # type: ignore[arg-type]
    assert rig.plan(blocks=10).admit == ["c"]


def test_a_prediction_says_that_there_is_room() -> None:
    # One more token of a and b, and up to 9 more in their last blocks.
    rig = full(predicted_output_tokens=11.0)
    rig.arrive("d", prompt=10, predicted_output_tokens=10.0)
    rig.runner.finished("c", 3)  # type: ignore[arg-type]
    assert rig.plan(blocks=4).admit == ["d"]


def test_a_request_alone_starts_however_much_it_may_grow() -> None:
    rig = Rig(Arrival(), parts={"memory": Memory()}, total_kv_blocks=10)
    rig.arrive("large", prompt=90, predicted_output_tokens=50.0)
    assert rig.plan(blocks=10).admit == ["large"]
