from __future__ import annotations

import math
from typing import Any

import pytest

from batchpolicy.policy import Ranking
from batchpolicy.requests import Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from batchpolicy.wrappers.batch_forming import BatchForming
from tests.support.policies import Patched, Shortest

LOADED: dict[str, Any] = {"busy_frac": 0.9}
DECODING: dict[str, Any] = {
    "arrival_s": 90.0, "prompt_tokens": 10, "computed_tokens": 14, "output_tokens": 5,
    "first_token_s": 99.0, "status": int(Status.RUNNING),
}  # fmt: skip


def ranked(
    gate: BatchForming,
    *ages_s: float,
    running: dict[str, Any] | None = DECODING,
    waiting: dict[str, Any] | None = None,
    **step: Any,
) -> Ranking:
    """What the gate says at 100 s of requests of these ages beside one that runs."""
    table = RequestTable()
    table.now_s = 100.0
    for i, age_s in enumerate(ages_s):
        table.add(f"w{i}", arrival_s=100.0 - age_s, prompt_tokens=9 - i, **(waiting or {}))
    if running is not None:
        table.add("r", **running)
    rows = table.view()
    is_running = rows.status == int(Status.RUNNING)
    parts = {"waiting": rows.take(~is_running), "running": rows.take(is_running)}
    at = make_step(now_s=100.0, **parts, **{**LOADED, **step})
    return gate.rank(at.waiting, at)


def is_open(ranking: Ranking) -> bool:
    return ranking.admissible is None or bool(ranking.admissible.all())


GATE = BatchForming(min_waiting=3, max_hold_s=0.5)


def test_two_of_three_wait_until_the_oldest_has_waited_long_enough() -> None:
    held = ranked(GATE, 0.25, 0.0)
    assert held.admissible is not None
    assert not held.admissible.any()
    assert held.wake_s == 99.75 + 0.5
    assert is_open(ranked(GATE, 0.25, 0.0, 0.0))
    assert is_open(ranked(GATE, 0.5))


def test_who_opens_the_gate_lets_all_in_and_leaves_the_order_to_the_policy_inside() -> None:
    gate = BatchForming(min_waiting=3, inner=Shortest())
    opened = ranked(gate, 0.1, 0.1, 0.1)
    assert opened.benefit.tolist() == [-9.0, -8.0, -7.0]
    assert (opened.admissible, opened.wake_s) == (None, math.inf)


def test_only_as_many_count_as_have_a_seat_and_there_are_never_more_than_seats() -> None:
    assert not is_open(ranked(GATE, 0.1, 0.1, 0.1, seats=2))
    assert is_open(ranked(GATE, 0.1, 0.1, seats=2, max_running=2))


@pytest.mark.parametrize(
    "room",
    [
        {"busy_frac": math.nan, "free_kv_blocks": 4000},
        {"busy_frac": 0.4, "free_kv_blocks": 2049},
    ],
)
def test_an_engine_with_room_to_spare_holds_nobody(room: dict[str, float]) -> None:
    assert is_open(ranked(GATE, 0.0, **room))


def test_much_kv_in_use_is_load_as_well() -> None:
    assert not is_open(ranked(GATE, 0.0, busy_frac=0.0, free_kv_blocks=2048))


def test_while_nothing_runs_requests_are_held_only_if_that_is_asked_for() -> None:
    assert is_open(ranked(GATE, 0.0, running=None))
    held = ranked(GATE.model_copy(update={"hold_idle": True}), 0.25, running=None)
    assert not is_open(held)
    assert held.wake_s == 100.25


def test_a_request_near_its_target_opens_the_gate() -> None:
    held = ranked(GATE, 0.125, waiting={"ttft_slo_s": 0.5})
    assert held.wake_s == 99.875 + 0.25
    assert is_open(ranked(GATE, 0.25, waiting={"ttft_slo_s": 0.5}))
    # Its first token is out: it was preempted, and that target is kept or lost.
    again = {"ttft_slo_s": 0.5, "first_token_s": 99.9}
    assert ranked(GATE, 0.25, waiting=again).wake_s == 100.25


@pytest.mark.parametrize(
    "forming",
    [
        {"prompt_tokens": 100, "computed_tokens": 50, "output_tokens": 0, "first_token_s": 101.0},
        {"prompt_tokens": 14, "computed_tokens": 14, "output_tokens": 1},
        # Its KV was lost, and is being computed again.
        {"computed_tokens": 3},
    ],
)
def test_while_a_prompt_is_computed_others_join_it(forming: dict[str, Any]) -> None:
    assert is_open(ranked(GATE, 0.0, running={**DECODING, **forming}))


def test_length_does_not_open_it_while_a_next_token_is_nearly_due() -> None:
    gate = GATE.model_copy(update={"tpot_slack_s": 0.1})
    # Five tokens are out since 99 s: the sixth is due at 99 + 5 * target.
    for target_s, opens in ((0.21, False), (0.23, True), (0.19, True), (math.inf, True)):
        running = {**DECODING, "tpot_slo_s": target_s}
        assert is_open(ranked(gate, 0.1, 0.1, 0.1, running=running)) is opens, target_s
        assert is_open(ranked(gate, 0.5, 0.1, 0.1, running=running))


def test_the_earlier_of_two_times_to_wake_is_told() -> None:
    def rank(rows: Any, step: Any) -> Ranking:
        return Shortest().rank(rows, step)._replace(wake_s=100.125)

    gate = GATE.model_copy(update={"inner": Patched.over(Shortest(), rank=rank)})
    assert ranked(gate, 0.25).wake_s == 100.125
