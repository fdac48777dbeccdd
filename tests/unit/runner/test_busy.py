"""The share of time in which steps ran, against sums over thin slices of it."""

from __future__ import annotations

import math
import random

import pytest

from batchpolicy.runner.busy import WINDOW_S, Busy
from tests.support.policies import Arrival
from tests.support.rig import Rig


def slowly(stretches: list[tuple[float, float]], now_s: float, slices: int = 40_000) -> float:
    """Weighted share of [0, now_s] inside of the stretches, slice by slice."""
    width = now_s / slices
    busy = total = 0.0
    for i in range(slices):
        at_s = (i + 0.5) * width
        weight = math.exp(-(now_s - at_s) / WINDOW_S)
        total += weight
        busy += weight * any(a <= at_s < b for a, b in stretches)
    return busy / total


def test_the_share_is_that_of_the_stretches_weighted_by_age() -> None:
    rng = random.Random(1)
    busy, now_s, stretches = Busy(), 0.0, []
    busy.begin(0.0)
    for _ in range(30):
        elapsed_s = rng.choice([0.05, 0.3])
        busy.begin(now_s)
        busy.ran(now_s, elapsed_s)
        stretches.append((now_s, now_s + elapsed_s))
        now_s += elapsed_s + rng.choice([0.0, 0.0, 0.4])
    assert busy.frac(now_s) == pytest.approx(slowly(stretches, now_s), abs=2e-3)
    assert busy.frac(now_s + 3.0) == pytest.approx(slowly(stretches, now_s + 3.0), abs=2e-3)


def test_nothing_is_known_before_time_has_passed() -> None:
    busy = Busy()
    assert math.isnan(busy.frac(7.0))
    busy.begin(7.0)
    assert math.isnan(busy.frac(7.0))
    assert busy.frac(8.0) == 0.0


def test_step_after_step_is_all_of_the_time_and_overlap_counts_once() -> None:
    busy = Busy()
    for i in range(100):
        busy.begin(i * 0.25)
        # Each is planned while the one before still runs.
        busy.ran(i * 0.25, 0.5)
    assert busy.frac(25.0) == pytest.approx(1.0)


def test_after_a_window_of_idleness_a_third_is_left() -> None:
    busy = Busy()
    busy.begin(0.0)
    busy.ran(0.0, 1000.0)
    assert busy.frac(1000.0 + WINDOW_S) == pytest.approx(math.exp(-1.0))


def test_steps_that_compute_nothing_do_not_count() -> None:
    seen: list[float] = []

    class Watching(Arrival):
        def benefit(self, requests, step):  # type: ignore[no-untyped-def]
            seen.append(step.busy_frac)
            return super().benefit(requests, step)

    rig = Rig(Watching())
    rig.arrive("a")
    rig.plan()
    rig.runner.scheduled({}, {}, [])
    rig.runner.produced({}, {}, 0.5)
    rig.plan()
    assert math.isnan(seen[0])
    assert seen[1] == 0.0
    rig.start("a")
    rig.arrive("b")
    rig.plan()
    # Of the two seconds since the first tick, half a second at the age of 1 to 0.5.
    e = [math.exp(-age / WINDOW_S) for age in (2.0, 1.0, 0.5)]
    assert seen[2] == pytest.approx((e[2] - e[1]) / (1.0 - e[0]))
