"""The first step that differs, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchpolicy.engine import StepRecord
from batchpolicy_tuning.conformance.steps import first_difference, reasons

STEP = StepRecord(
    index=0, start_s=0.0, duration_s=0.5, tokens={"a": 8, "b": 1}, preempted=(), running=2,
    waiting=3, free_kv_blocks=7,
)  # fmt: skip
NEXT = replace(STEP, index=1, start_s=0.5)


def test_equal_steps_differ_nowhere() -> None:
    assert first_difference([STEP, NEXT], [replace(STEP), replace(NEXT)]) is None
    assert first_difference([], []) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tokens": {"b": 1, "a": 8}}, ["the same tokens in another order"]),
        ({"tokens": {"a": 7, "b": 1}}, ["a computes 8 tokens on light and 7 on real"]),
        (
            {"tokens": {"a": 8, "c": 4}},
            [
                "only light computes b, which had started before",
                "only real starts c",
            ],
        ),
        ({"preempted": ("c",)}, ["only real preempts c"]),
        ({"free_kv_blocks": 6}, ["free KV blocks: 7 on light, 6 on real"]),
        ({"waiting": 4, "running": 1}, [
            "running requests: 2 on light, 1 on real",
            "waiting requests: 3 on light, 4 on real",
        ]),
        ({"start_s": 0.25}, ["starts at 0.5 s on light and 0.25 s on real"]),
        ({"duration_s": 0.75}, ["duration: 0.5 on light, 0.75 on real"]),
    ],
)  # fmt: skip
def test_a_step_that_differs_is_found_with_the_reason(
    change: dict[str, Any], why: list[str]
) -> None:
    ours, theirs = [STEP, NEXT], [STEP, replace(NEXT, **change)]
    assert first_difference(ours, theirs) == 1
    assert list(reasons(ours, theirs, 1, "real")) == why


def test_a_run_that_goes_on_differs_where_the_other_ends() -> None:
    assert first_difference([STEP], [STEP, NEXT, NEXT]) == 1
    assert list(reasons([STEP], [STEP, NEXT, NEXT], 1, "real")) == [
        "only real has this step; it goes on for 2 more"
    ]
