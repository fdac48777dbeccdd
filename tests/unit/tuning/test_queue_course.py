from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.engine import Run
from batchpolicy.workload import Workload
from batchpolicy_tuning.queue_course import LoadState, QueueCourse
from tests.support.serial_engine import LIMITS, NoCost, SerialEngine, request


def _ran(*arrivals_and_starts: tuple[float, float]) -> Run:
    workload = Workload(
        "w", tuple(request(f"r{i}", at_s, 1) for i, (at_s, _) in enumerate(arrivals_and_starts))
    )
    run = SerialEngine().replay(workload, None, LIMITS, NoCost())
    started = np.array([start_s for _, start_s in arrivals_and_starts])
    return replace(run, first_scheduled_s=started, finished_s=started + 1.0, end_s=50.0)


def test_the_course_of_a_queue_by_hand() -> None:
    # Quarters of 4 s. One waits 0 to 4 and one 2 to 6: 6 of 4 s, then 2. Nobody waits from 6
    # to 10, one from 10 to 18, of which 2 s are in the third quarter, and one from 16 on.
    course = QueueCourse.of(_ran((0.0, 4.0), (2.0, 6.0), (10.0, 18.0), (16.0, 20.0)))
    assert course.waiting == (1.5, 0.5, 0.5, 1.0)
    assert course.busy_share == 12 / 16
    assert course.unbroken_share == 0.0
    assert course.drain_share == 4 / 16


def test_what_never_starts_waits_until_it_ends_or_the_run_does() -> None:
    run = _ran((0.0, 4.0), (8.0, math.nan), (16.0, 16.0))
    run.finished_s[1] = 10.0
    assert QueueCourse.of(run).waiting == (1.0, 0.0, 0.5, 0.0)
    run.finished_s[1] = math.nan
    left = QueueCourse.of(run)
    assert left.waiting == (1.0, 0.0, 1.0, 1.0)
    assert left.drain_share == (50.0 - 16.0) / 16.0


def test_a_queue_that_never_empties_in_the_second_half_is_unbroken() -> None:
    assert QueueCourse.of(_ran((0.0, 0.0), (7.0, 17.0), (16.0, 18.0))).unbroken_share == 1.0
    assert QueueCourse.of(_ran((0.0, 0.0), (9.0, 17.0), (16.0, 18.0))).unbroken_share == 0.0


def test_requests_of_one_instant_have_no_course() -> None:
    assert QueueCourse.of(_ran((1.0, 2.0), (1.0, 3.0))) == QueueCourse((0.0,) * 4, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("busy", "unbroken", "drain", "state"),
    [
        (0.3, 0.0, 0.01, LoadState.STABLE),
        (0.3, 0.6, 0.05, LoadState.STABLE),
        (0.6, 0.4, 0.01, LoadState.BACKLOGGED),
        (0.3, 0.4, 0.06, LoadState.BACKLOGGED),
        (0.9, 0.5, 0.06, LoadState.OVERLOADED),
    ],
)
def test_the_state_follows_the_stated_rule(
    busy: float, unbroken: float, drain: float, state: LoadState
) -> None:
    assert QueueCourse((0.0,) * 4, busy, unbroken, drain).state is state


def test_the_state_is_that_of_the_mean_over_replications() -> None:
    light = QueueCourse((1.0, 1.0, 1.0, 1.0), 0.2, 0.0, 0.0)
    heavy = QueueCourse((1.0, 3.0, 5.0, 7.0), 1.0, 1.0, 0.3)
    mean = QueueCourse.mean([light, heavy])
    assert mean == QueueCourse((1.0, 2.0, 3.0, 4.0), 0.6, 0.5, 0.15)
    assert mean.state is LoadState.OVERLOADED


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), min_size=2, max_size=12))
def test_shares_agree_with_counting_instants(drawn: list[tuple[int, int]]) -> None:
    times = sorted((float(at), float(at + wait)) for at, wait in drawn)
    times[-1] = (times[-1][0] + 1.0, times[-1][1] + 1.0)
    course = QueueCourse.of(_ran(*times))
    start, end = times[0][0], times[-1][0]
    # Everything happens at whole seconds, so that the middles of seconds tell all.
    seconds = [start + k + 0.5 for k in range(int(end - start))]
    waiting = [sum(a < at < s for a, s in times) for at in seconds]
    assert course.busy_share == pytest.approx(np.mean([n > 0 for n in waiting]))
    assert np.mean(course.waiting) == pytest.approx(np.mean(waiting))
