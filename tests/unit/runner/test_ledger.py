from __future__ import annotations

import math
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.policies.benefit import Benefit
from batchpolicy.requests import Requests, Status
from batchpolicy.runner import EngineFacts, RequestFacts
from batchpolicy.runner.ledger import Ledger
from batchpolicy.runner.table import SlotSet
from batchpolicy.terms import Fairness
from batchpolicy.testing import make_step
from tests.support.policies import Arrival, Recorder

FACTS = EngineFacts(
    max_running=4, max_token_budget=64, total_kv_blocks=64, kv_block_tokens=16, clock=lambda: 0.0
)


def ids(ledger: Ledger, slots: SlotSet) -> list[str]:
    return sorted(ledger.view(slots).request_id)


def row(ledger: Ledger, request_id: str) -> Requests:
    return ledger.table.rows(ledger.slots_of([request_id]))


def arrive(ledger: Ledger, *names: str, prompt: int = 40, **facts: object) -> None:
    for name in names:
        ledger.arrived(name, RequestFacts(prompt_tokens=prompt, max_tokens=9, **facts))  # type: ignore[arg-type]


def test_an_arrival_is_stamped_by_the_tick_that_follows_unless_its_time_is_known() -> None:
    ledger = Ledger(Arrival(), FACTS)
    ledger.begin(1.0)
    arrive(ledger, "a")
    arrive(ledger, "b", arrival_s=1.5)
    ledger.begin(2.0)
    ledger.begin(3.0)
    assert [row(ledger, i).arrival_s[0] for i in ("a", "b")] == [2.0, 1.5]
    assert ledger.view(ledger.waiting).queue_s.tolist() == [1.0, 1.5]


def test_facts_become_columns_and_names_become_codes() -> None:
    ledger = Ledger(Arrival(), FACTS)
    arrive(ledger, "a", tenant="x", session="s", lora="l", weight=2.0, ttft_slo_s=1.0)
    arrive(ledger, "b", tenant="y", session="s", prompt=16)
    arrive(ledger, "c", tenant="x", session="t", prompt=17)
    rows = ledger.table.view()
    assert rows.tenant.tolist() == [0, 1, 0]
    assert rows.session.tolist() == [0, 0, 1]
    assert rows.turn.tolist() == [0, 1, 0]
    assert rows.lora.tolist() == [0, -1, -1]
    assert rows.weight.tolist() == [2.0, 1.0, 1.0]
    assert rows.ttft_slo_s.tolist() == [1.0, math.inf, math.inf]
    assert rows.need_kv_blocks.tolist() == [3, 1, 2]


def test_a_share_in_the_policy_file_goes_before_that_of_the_request() -> None:
    ledger = Ledger(Benefit(fairness=Fairness(weights={"x": 5.0})), FACTS)
    arrive(ledger, "a", tenant="x", weight=2.0)
    arrive(ledger, "b", tenant="y", weight=2.0)
    assert ledger.table.view().weight.tolist() == [5.0, 2.0]


def test_a_deadline_after_the_arrival_counts_from_the_tick_that_stamps_it() -> None:
    ledger = Ledger(Arrival(), FACTS)
    ledger.begin(10.0)
    arrive(ledger, "a", deadline_after_s=5.0)
    arrive(ledger, "b")
    ledger.begin(12.0)
    ledger.begin(13.0)
    assert row(ledger, "a").deadline_s[0] == 17.0
    assert row(ledger, "b").deadline_s[0] == math.inf


def test_of_two_deadlines_the_earlier_holds_where_the_arrival_is_known() -> None:
    ledger = Ledger(Arrival(), FACTS)
    arrive(ledger, "a", arrival_s=2.0, deadline_s=9.0, deadline_after_s=5.0)
    arrive(ledger, "b", arrival_s=2.0, deadline_s=6.0, deadline_after_s=5.0)
    ledger.begin(3.0)
    assert ledger.table.view().deadline_s.tolist() == [7.0, 6.0]


def test_a_predicted_length_is_there_for_the_policy() -> None:
    ledger = Ledger(Arrival(), FACTS)
    arrive(ledger, "a", predicted_output_tokens=4.5)
    arrive(ledger, "b")
    assert ledger.table.view().remaining_output_tokens.tolist() == [4.5, 9.0]


def test_a_request_is_in_exactly_one_set_throughout_its_life() -> None:
    ledger = Ledger(Arrival(), FACTS)
    arrive(ledger, "a", ready=False)
    assert (ids(ledger, ledger.blocked), row(ledger, "a").ready[0]) == (["a"], False)
    for flag, place in [(True, ledger.waiting), (True, ledger.waiting), (False, ledger.blocked)]:
        ledger.ready("a", flag)
        assert ids(ledger, place) == ["a"]
        assert row(ledger, "a").ready[0] == flag
    assert ledger.admitted({"a": 0}) == 1
    assert row(ledger, "a").ready[0]
    ledger.ready("a", False)
    assert ids(ledger, ledger.running) == ["a"]
    assert not ids(ledger, ledger.waiting) and not ids(ledger, ledger.blocked)
    ledger.preempted("a")
    assert ids(ledger, ledger.waiting) == ["a"]
    assert not ids(ledger, ledger.running)


def test_columns_follow_a_request_through_chunks_decodes_and_a_preemption() -> None:
    policy = Recorder()
    ledger = Ledger(policy, FACTS)
    ledger.begin(1.0)
    arrive(ledger, "a")
    ledger.begin(2.0)
    ledger.admitted({"a": 16})
    a = row(ledger, "a")
    assert (a.status[0], a.first_scheduled_s[0]) == (Status.RUNNING, 2.0)
    assert (a.computed_tokens[0], a.cached_tokens[0], a.prefill_tokens[0]) == (16, 16, 24)
    ledger.batch.scheduled({"a": 20})
    a = row(ledger, "a")
    assert (a.computed_tokens[0], a.kv_blocks[0], a.prefill_tokens[0]) == (36, 3, 4)
    assert ledger.batch.mid_prefill == 1
    ledger.produced({}, {}, 0.5)
    assert math.isnan(row(ledger, "a").first_token_s[0])
    ledger.begin(3.0)
    ledger.batch.scheduled({"a": 4})
    assert ledger.batch.mid_prefill == 0
    ledger.produced({"a": 1}, {}, 0.5)
    ledger.begin(4.0)
    ledger.batch.scheduled({"a": 1})
    ledger.produced({"a": 1}, {}, 0.5)
    a = row(ledger, "a")
    assert (a.first_token_s[0], a.last_token_s[0]) == (3.5, 4.5)
    assert (a.output_tokens[0], a.computed_tokens[0], a.prefill_tokens[0]) == (2, 41, 0)
    assert ledger.batch.step_s == 0.5
    ledger.preempted("a")
    a = row(ledger, "a")
    assert (a.status[0], a.preemptions[0], a.computed_tokens[0]) == (Status.WAITING, 1, 0)
    assert (a.cached_tokens[0], a.kv_blocks[0]) == (0, 0)
    # 42 tokens are computed again; the times of the first start and token stand.
    assert (a.prefill_tokens[0], a.need_kv_blocks[0]) == (42, 3)
    assert (a.first_scheduled_s[0], a.first_token_s[0], a.output_tokens[0]) == (2.0, 3.5, 2)
    ledger.begin(5.0)
    ledger.admitted({"a": 0})
    ledger.batch.scheduled({"a": 42})
    ledger.produced({"a": 1}, {}, 0.5)
    assert row(ledger, "a").first_scheduled_s[0] == 2.0
    ledger.events.deliver(make_step())
    assert [w.prefill_tokens.tolist() for w in policy.work] == [[24], [42]]
    assert [w.output_tokens.tolist() for w in policy.work] == [[2], [1]]


def test_a_request_in_the_middle_of_its_prompt_counts_although_it_got_no_tokens() -> None:
    ledger = Ledger(Arrival(), FACTS)
    arrive(ledger, "a", "b", prompt=64)
    ledger.admitted({"a": 0, "b": 0})
    ledger.batch.scheduled({"a": 64})
    assert ledger.batch.mid_prefill == 1
    ledger.finished("b", Status.ABORTED)
    ledger.batch.scheduled({"a": 1})
    assert ledger.batch.mid_prefill == 0


def test_rejected_drafts_leave_the_computed_tokens() -> None:
    ledger = Ledger(Arrival(), FACTS)
    arrive(ledger, "a")
    ledger.admitted({"a": 0})
    ledger.batch.scheduled({"a": 40})
    ledger.produced({"a": 1}, {}, 0.1)
    ledger.batch.scheduled({"a": 4})
    ledger.produced({"a": 2}, {"a": 2, "unknown": 1}, 0.1)
    a = row(ledger, "a")
    assert (a.output_tokens[0], a.computed_tokens[0]) == (3, 42)


def test_drafts_rejected_after_a_preemption_take_nothing_away() -> None:
    ledger = Ledger(Arrival(), FACTS)
    arrive(ledger, "a")
    ledger.admitted({"a": 0})
    ledger.batch.scheduled({"a": 40})
    ledger.preempted("a")
    ledger.produced({"a": 1}, {"a": 3}, 0.1)
    assert row(ledger, "a").computed_tokens[0] == 0


def test_tokens_in_flight_of_a_preempted_request_count_and_are_computed_again() -> None:
    policy = Recorder()
    ledger = Ledger(policy, FACTS)
    arrive(ledger, "a", prompt=16)
    ledger.admitted({"a": 0})
    ledger.batch.scheduled({"a": 16})
    ledger.preempted("a")
    assert row(ledger, "a").need_kv_blocks[0] == 1
    ledger.produced({"a": 1}, {}, 0.1)
    assert row(ledger, "a").output_tokens[0] == 1
    assert row(ledger, "a").need_kv_blocks[0] == 2
    ledger.events.deliver(make_step())
    assert policy.work[0].output_tokens.tolist() == [1]


def test_results_of_a_request_that_ended_in_flight_are_dropped() -> None:
    policy = Recorder()
    ledger = Ledger(policy, FACTS)
    arrive(ledger, "a", "b")
    ledger.admitted({"a": 0, "b": 0})
    ledger.batch.scheduled({"a": 40, "b": 24})
    ledger.finished("a", Status.ABORTED)
    ledger.produced({"a": 1}, {"a": 1}, 0.1)
    ledger.events.deliver(make_step())
    assert policy.calls[-1] == ("computed", ["b"])
    assert policy.work[0].prefill_tokens.tolist() == [24]
    assert policy.work[0].output_tokens.tolist() == [0]


def test_results_of_an_ended_request_are_not_those_of_the_new_owner_of_its_slot() -> None:
    policy = Recorder()
    ledger = Ledger(policy, FACTS)
    arrive(ledger, "a")
    ledger.admitted({"a": 0})
    ledger.batch.scheduled({"a": 40})
    slot = ledger.table.slots["a"]
    ledger.finished("a", Status.FINISHED)
    ledger.events.deliver(make_step())
    arrive(ledger, "b")
    assert ledger.table.slots["b"] == slot
    ledger.produced({"a": 1}, {}, 0.1)
    ledger.events.deliver(make_step())
    assert policy.named("computed") == []


def test_results_of_an_ended_request_are_not_those_of_a_new_one_with_its_id() -> None:
    policy = Recorder()
    ledger = Ledger(policy, FACTS)
    arrive(ledger, "a")
    ledger.admitted({"a": 0})
    ledger.batch.scheduled({"a": 40})
    ledger.finished("a", Status.ABORTED)
    arrive(ledger, "a")
    ledger.produced({"a": 1}, {}, 0.1)
    assert row(ledger, "a").output_tokens[0] == 0
    assert math.isnan(row(ledger, "a").first_token_s[0])
    ledger.events.deliver(make_step())
    assert policy.named("computed") == []


def test_results_of_two_steps_in_flight_come_back_in_their_order() -> None:
    policy = Recorder()
    ledger = Ledger(policy, FACTS)
    arrive(ledger, "a", "b")
    ledger.admitted({"a": 0})
    ledger.batch.scheduled({"a": 30})
    ledger.admitted({"b": 0})
    ledger.batch.scheduled({"a": 10, "b": 20})
    ledger.produced({}, {}, 0.1)
    ledger.events.deliver(make_step())
    assert policy.calls[-1] == ("computed", ["a"])
    assert policy.work[0].prefill_tokens.tolist() == [30]
    ledger.produced({"a": 1}, {}, 0.1)
    ledger.events.deliver(make_step())
    assert policy.calls[-1] == ("computed", ["a", "b"])
    assert policy.work[1].prefill_tokens.tolist() == [10, 20]
    assert policy.work[1].output_tokens.tolist() == [1, 0]


@pytest.mark.parametrize("state", ["waiting", "blocked", "running", "preempted"])
def test_a_request_can_end_in_any_state_and_leaves_nothing(state: str) -> None:
    policy = Recorder()
    ledger = Ledger(policy, FACTS)
    arrive(ledger, "a", ready=state != "blocked")
    if state in {"running", "preempted"}:
        ledger.admitted({"a": 0})
        ledger.batch.scheduled({"a": 10})
    if state == "preempted":
        ledger.preempted("a")
    slot = ledger.table.slots["a"]
    ledger.finished("a", Status.ABORTED)
    ledger.finished("a", Status.FINISHED)
    assert len(ledger.table) == len(ledger.waiting) == len(ledger.blocked) == 0
    assert len(ledger.running) == 0
    ledger.events.deliver(make_step())
    assert policy.named("finished") == [["a"]]
    arrive(ledger, "b")
    assert ledger.table.slots["b"] == slot


def test_what_is_not_known_is_ignored() -> None:
    ledger = Ledger(Recorder(), FACTS)
    ledger.ready("x", True)
    ledger.finished("x", Status.FINISHED)
    ledger.preempted("x")
    assert ledger.admitted({"x": 3}) == 0
    ledger.batch.scheduled({"x": 3})
    ledger.produced({"x": 1}, {"x": 1}, 0.1)
    ledger.produced({"x": 1}, {}, 0.1)
    assert not ledger.events
    assert len(ledger.table) == 0


def test_a_request_that_has_a_seat_is_not_admitted_again() -> None:
    policy = Recorder()
    ledger = Ledger(policy, FACTS)
    arrive(ledger, "a")
    ledger.admitted({"a": 0})
    ledger.batch.scheduled({"a": 10})
    assert ledger.admitted({"a": 0}) == 0
    assert row(ledger, "a").computed_tokens[0] == 10
    ledger.events.deliver(make_step())
    assert policy.named("admitted") == [["a"]]


def test_a_waiting_request_is_overtaken_by_each_later_one_that_starts() -> None:
    ledger = Ledger(Arrival(), FACTS)
    arrive(ledger, "a", "b", "c", "d", "e")
    ledger.admitted({"b": 0, "d": 0})
    assert ledger.table.view().overtakes.tolist() == [2, 0, 1, 0, 0]
    ledger.preempted("d")
    ledger.admitted({"d": 0, "e": 0})
    # Only e starts for the first time.
    assert ledger.table.view().overtakes.tolist() == [3, 0, 2, 0, 0]


@given(
    st.lists(st.tuples(st.sampled_from("abrtfp"), st.integers(0, 30)), max_size=60),
    st.integers(0, 5),
)
def test_overtakes_are_counted_as_a_look_at_every_row_would(
    events: list[tuple[str, int]], many: int
) -> None:
    with patch("batchpolicy.runner.ledger._MANY_PASSED", many):
        ledger = Ledger(Arrival(), FACTS)
    # Order of arrival, and of each whether it could start and how often it was overtaken.
    slow: dict[str, list[int]] = {}
    ready: dict[str, bool] = {}
    started: set[str] = set()
    for kind, number in events:
        name = list(slow)[number % len(slow)] if slow else ""
        if kind in "ab":
            name = f"r{len(slow)}"
            arrive(ledger, name, ready=kind == "a")
            slow[name], ready[name] = [len(slow), 0], kind == "a"
        elif name not in ledger.table:
            continue
        elif kind == "r" and name not in started:
            ready[name] = not ready[name]
            ledger.ready(name, ready[name])
        elif kind == "t" and name not in started:
            for other, book in slow.items():
                waits = other in ledger.table and other not in started and ready[other]
                book[1] += waits and book[0] < slow[name][0]
            started.add(name)
            ledger.admitted({name: 0})
        elif kind == "p" and name in started:
            ledger.preempted(name)
            ledger.admitted({name: 0})
        elif kind == "f":
            ledger.finished(name, Status.FINISHED)
        view = ledger.table.view()
        counted = dict(zip(view.request_id, view.overtakes.tolist(), strict=True))
        assert counted == {i: slow[i][1] for i in counted}
