from __future__ import annotations

import math

import numpy as np
import pytest

from batchpolicy.engine import Run, StepRecord
from batchpolicy.workload import Workload
from batchpolicy_tuning.recording import POINTS, Recorder, Recording
from tests.support.serial_engine import LIMITS, NoCost, SerialEngine, request


def _step(
    start_s: float,
    duration_s: float,
    *,
    tokens: tuple[str, ...] = (),
    preempted: tuple[str, ...] = (),
    waiting: int = 0,
    used_blocks: int = 0,
) -> StepRecord:
    return StepRecord(
        index=0,
        start_s=start_s,
        duration_s=duration_s,
        tokens=dict.fromkeys(tokens, 1),
        preempted=preempted,
        running=len(tokens),
        waiting=waiting,
        free_kv_blocks=LIMITS.kv_blocks - used_blocks,
    )


def _run(*ends_s: float) -> Run:
    """A run of requests ``r0``, ``r1``, ... that arrive at 0; only its end counts here."""
    requests = tuple(request(f"r{i}", 0.0, 1) for i in range(len(ends_s)))
    run = SerialEngine().replay(Workload("w", requests), None, LIMITS, NoCost())
    object.__setattr__(run, "end_s", max(ends_s))
    return run


def _recorded(run: Run, *steps: StepRecord) -> Recording:
    recorder = Recorder(LIMITS)
    for step in steps:
        recorder(step)
    return recorder.recording(run)


def _at(recording: Recording, time_s: float) -> int:
    """The part in which a time falls."""
    return int(np.searchsorted(recording.at_s, time_s, side="right")) - 1


def test_each_part_keeps_the_largest_values_and_they_hold_until_the_next_step() -> None:
    short = 1.0 / POINTS / 10.0
    found = _recorded(
        _run(1.0),
        _step(0.0, 0.5, waiting=3, used_blocks=500, tokens=("r0",)),
        # Many steps fall into one part; the longest queue of them is shown.
        _step(0.5, short, waiting=7, used_blocks=800, tokens=("r0",)),
        _step(0.5 + short, 0.5 - short, waiting=1, used_blocks=100, tokens=("r0",)),
    )
    assert found.waiting[[_at(found, 0.0), _at(found, 0.49)]].tolist() == [3, 3]
    assert found.waiting[_at(found, 0.5005)] == 7
    assert found.waiting[_at(found, 0.99)] == 1
    assert found.kv_used_frac[_at(found, 0.25)] == pytest.approx(0.5)
    assert found.kv_used_frac.max() == pytest.approx(0.8)


def test_nothing_runs_and_no_kv_is_held_while_nothing_is_computed() -> None:
    found = _recorded(
        _run(3.0),
        _step(0.0, 1.0, used_blocks=500, tokens=("r0",)),
        _step(2.0, 1.0, used_blocks=500, tokens=("r0",)),
    )
    middle = _at(found, 1.5)
    assert (found.running[middle], found.kv_used_frac[middle]) == (0, 0.0)
    assert found.running[_at(found, 2.5)] == 1


def test_a_preemption_lasts_until_the_request_is_scheduled_again() -> None:
    found = _recorded(
        _run(5.0, 5.0),
        _step(0.0, 1.0, tokens=("r0", "r1")),
        _step(1.0, 1.0, tokens=("r0",), preempted=("r1",)),
        _step(2.0, 1.0, tokens=("r0",)),
        _step(3.0, 1.0, tokens=("r0", "r1")),
        _step(4.0, 1.0, tokens=("r1",), preempted=("r0",)),
    )
    assert list(found.breaks_s[1]) == [(1.0, 3.0)]
    ((gone_s, again_s),) = found.breaks_s[0]
    assert gone_s == 4.0
    assert math.isnan(again_s)


def test_an_engine_that_tells_nothing_leaves_an_empty_course() -> None:
    found = _recorded(_run(1.0))
    assert found.waiting.tolist() == [0] * POINTS
