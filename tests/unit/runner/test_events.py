from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.runner.events import EventLog
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from tests.support.policies import Arrival, Patched, Recorder

STEP = make_step()


def table_of(n: int) -> RequestTable:
    table = RequestTable(capacity=n)
    for i in range(n):
        table.add(f"r{i}")
    return table


def computed(log: EventLog, work: dict[int, tuple[int, int]]) -> None:
    """A step's results: prefill and output tokens by slot."""
    slots = np.array(list(work), dtype=np.intp)
    prefill, output = (np.array([w[i] for w in work.values()], dtype=np.int64) for i in (0, 1))
    log.computed(slots, prefill, output, 0.5)


def test_neighbours_of_one_kind_are_one_call_and_kinds_keep_their_order() -> None:
    policy = Recorder()
    log = EventLog(policy, table_of(3))
    for kind, slot in [
        ("arrived", 0), ("arrived", 1), ("admitted", 1), ("arrived", 2), ("preempted", 1),
        ("admitted", 1), ("admitted", 0), ("finished", 0),
    ]:  # fmt: skip
        log.add(kind, slot)  # type: ignore[arg-type]
    assert log
    log.deliver(STEP)
    assert policy.calls == [
        ("arrived", ["r0", "r1"]),
        ("admitted", ["r1"]),
        ("arrived", ["r2"]),
        ("preempted", ["r1"]),
        ("admitted", ["r1", "r0"]),
        ("finished", ["r0"]),
    ]
    assert not log


def test_events_are_delivered_once() -> None:
    policy = Recorder()
    log = EventLog(policy, table_of(1))
    log.add("arrived", 0)
    log.deliver(STEP)
    log.deliver(STEP)
    assert policy.calls == [("arrived", ["r0"])]


def test_results_of_steps_between_two_plans_are_summed_by_request() -> None:
    policy = Recorder()
    log = EventLog(policy, table_of(3))
    computed(log, {2: (10, 0), 0: (0, 1)})
    computed(log, {2: (5, 1), 0: (0, 1)})
    computed(log, {0: (0, 2), 1: (7, 0)})
    log.deliver(STEP)
    assert policy.calls == [("computed", ["r0", "r1", "r2"])]
    (work,) = policy.work
    assert work.prefill_tokens.tolist() == [0, 7, 15]
    assert work.output_tokens.tolist() == [4, 0, 1]
    assert (work.steps, work.elapsed_s) == (3, 1.5)


def test_summing_results_leaves_the_arrays_of_the_caller_alone() -> None:
    log = EventLog(Recorder(), table_of(1))
    slots, prefill, output = np.array([0]), np.array([4]), np.array([1])
    for _ in range(3):
        log.computed(slots, prefill, output, 0.5)
    assert (prefill.tolist(), output.tolist()) == ([4], [1])


def test_results_before_and_after_another_event_are_told_apart() -> None:
    policy = Recorder()
    log = EventLog(policy, table_of(2))
    computed(log, {0: (10, 0)})
    log.add("preempted", 0)
    computed(log, {0: (3, 0)})
    log.deliver(STEP)
    assert [name for name, _ in policy.calls] == ["computed", "preempted", "computed"]
    assert [work.prefill_tokens.tolist() for work in policy.work] == [[10], [3]]


def test_a_step_without_results_is_no_event() -> None:
    policy = Recorder()
    log = EventLog(policy, table_of(1))
    computed(log, {})
    assert not log


def test_a_hook_that_is_not_overridden_is_not_kept_for() -> None:
    log = EventLog(Arrival(), table_of(1))
    for kind in ("arrived", "admitted", "preempted"):
        log.add(kind, 0)  # type: ignore[arg-type]
    computed(log, {0: (1, 0)})
    assert not log


@pytest.mark.parametrize("policy", [Recorder(), Arrival()], ids=["with hooks", "without"])
def test_a_slot_is_reused_only_when_its_end_has_been_delivered(policy: Arrival | Recorder) -> None:
    table = table_of(2)
    log = EventLog(policy, table)
    slot = table.forget("r0")
    log.add("finished", slot)
    assert table.add("new") != slot
    log.deliver(STEP)
    assert table.add("newer") == slot


def test_a_hook_that_raises_leaves_the_slots_released_and_the_events_gone() -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("boom")

    table = table_of(2)
    log = EventLog(Patched.over(Arrival(), on_arrived=fails), table)
    log.add("arrived", 1)
    slot = table.forget("r0")
    log.add("finished", slot)
    with pytest.raises(RuntimeError, match="boom"):
        log.deliver(STEP)
    assert not log
    assert table.add("new") == slot


def test_a_silenced_log_tells_nothing_and_still_releases_slots() -> None:
    policy = Recorder()
    table = table_of(2)
    log = EventLog(policy, table)
    log.add("arrived", 0)
    log.silence()
    log.add("admitted", 0)
    computed(log, {0: (1, 1)})
    slot = table.forget("r0")
    log.add("finished", slot)
    log.deliver(STEP)
    assert policy.calls == []
    assert table.add("new") == slot
