from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.policy import Work
from batchpolicy.requests import Requests, Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.terms import Ageing, Fairness, PriorityTerm, Shortness, Urgency
from batchpolicy.testing import make_step

STEP = make_step(now_s=100.0)
TENANTS = {"none": -1, "a": 0, "b": 1, "c": 2}


def test_priority_falls_strictly_with_its_number_up_to_ten_million() -> None:
    numbers = np.concatenate(
        [
            np.arange(-(10**7), -(10**7) + 1000),
            np.arange(-1000, 1000),
            np.arange(10**7 - 1000, 10**7 + 1),
        ]
    )
    table = RequestTable(capacity=len(numbers))
    for i, number in enumerate(numbers.tolist()):
        table.add(f"r{i}", priority=number)
    score = PriorityTerm().score(table.view(), STEP)
    assert (np.diff(score) < 0).all()
    assert 0.0 <= score.min() and score.max() <= 1.0


def test_priority_is_half_at_zero_and_a_quarter_or_three_at_the_scale() -> None:
    table = RequestTable()
    for name, priority in [("low", 8), ("zero", 0), ("high", -8), ("lowest", 2**62)]:
        table.add(name, priority=priority)
    score = PriorityTerm(scale=8.0).score(table.view(), STEP)
    assert score.tolist() == [0.25, 0.5, 0.75, 0.0]


def test_urgency_is_one_when_due_and_halves_with_each_half_life_before() -> None:
    table = RequestTable()
    for name, slack_s in [("due", 0.0), ("one half-life", 2.0), ("three", 6.0)]:
        table.add(name, arrival_s=100.0, ttft_slo_s=slack_s)
    table.add("no target", arrival_s=0.0)
    table.add("target met", arrival_s=90.0, ttft_slo_s=1.0, first_token_s=90.5, output_tokens=1)
    score = Urgency(half_life_s=2.0).score(table.view(), STEP)
    assert score.tolist() == [1.0, 0.5, 0.125, 0.0, 0.0]


@pytest.mark.parametrize(("lost", "score"), [("relegate", 0.0), ("refuse", 0.0), ("chase", 1.0)])
def test_a_target_that_was_missed_makes_nobody_urgent_unless_it_is_chased(
    lost: Any, score: float
) -> None:
    table = RequestTable()
    table.add("late", arrival_s=90.0, ttft_slo_s=1.0)
    assert Urgency(lost=lost).score(table.view(), STEP).tolist() == [score]


def test_who_was_started_late_is_urgent_by_its_next_token() -> None:
    table = RequestTable()
    life = {"arrival_s": 90.0, "ttft_slo_s": 1.0, "tpot_slo_s": 1.0, "output_tokens": 1}
    table.add("started late", first_token_s=99.5, **life)
    table.add("behind its pace", first_token_s=98.5, **life)
    # The second tokens are due at 100.5 and 99.5: a mean can be made up for.
    assert Urgency(half_life_s=0.5).score(table.view(), STEP).tolist() == [0.5, 1.0]


def test_only_what_has_lost_all_its_targets_and_never_started_is_refused() -> None:
    table = RequestTable()
    late = {"arrival_s": 90.0, "ttft_slo_s": 1.0}
    table.add("late", **late)
    table.add("in time for its deadline", deadline_s=110.0, **late)
    table.add("late for both", deadline_s=99.0, **late)
    table.add("preempted", first_scheduled_s=95.0, **late)
    table.add("no target")
    refuse = Urgency(lost="refuse").refuse(table.view(), make_step(now_s=100.0))
    assert refuse is not None
    assert refuse.tolist() == [True, False, True, False, False]
    assert Urgency().refuse(table.view(), STEP) is None


def test_urgency_of_a_running_request_follows_its_mean_time_per_token() -> None:
    table = RequestTable()
    life = {"first_token_s": 98.0, "tpot_slo_s": 0.5}
    table.add("late", output_tokens=4, **life)
    table.add("ahead", output_tokens=6, **life)
    # The seventh token is due at 98 + 6 * 0.5.
    assert Urgency(half_life_s=1.0).score(table.view(), STEP).tolist() == [1.0, 0.5]


def test_urgency_knows_the_deadline_of_the_answer_and_what_is_predicted_to_come() -> None:
    table = RequestTable()
    table.add("target first", ttft_slo_s=1.0, arrival_s=100.0, deadline_s=109.0)
    table.add("deadline first", ttft_slo_s=9.0, arrival_s=100.0, deadline_s=102.0)
    # 20 of 30 tokens are to come, at 50 ms each.
    predicted = {"predicted_output_tokens": 30.0, "output_tokens": 10}
    table.add("predicted", deadline_s=102.0, **predicted)
    table.add(
        "over the prediction", deadline_s=102.0, predicted_output_tokens=5.0, output_tokens=9
    )
    step = make_step(now_s=100.0, step_s=0.05)
    score = Urgency(half_life_s=1.0).score(table.view(), step)
    assert score.tolist() == [0.5, 0.25, 0.5, 0.25]
    # Nothing was measured yet.
    unknown = make_step(now_s=100.0, step_s=float("nan"))
    assert Urgency(half_life_s=1.0).score(table.view(), unknown).tolist() == [
        0.5,
        0.25,
        0.25,
        0.25,
    ]


def test_shortness_halves_at_its_scale_and_counts_no_cached_tokens_but_predicted_ones() -> None:
    table = RequestTable()
    table.add("half", prompt_tokens=100, max_tokens=9000)
    table.add("cached", prompt_tokens=400, cached_tokens=300)
    # 60 tokens to come, at 5 each, beside a prompt that is computed.
    table.add(
        "answering", prompt_tokens=50, computed_tokens=89, output_tokens=40,
        predicted_output_tokens=100.0,
    )  # fmt: skip
    table.add("nothing", prompt_tokens=50, computed_tokens=89, output_tokens=40)
    score = Shortness(scale_tokens=100.0, output_weight=5.0).score(table.view(), STEP)
    assert score.tolist() == [0.5, 0.5, 0.25, 1.0]


def test_the_oldest_of_a_tenant_is_aged_one_and_others_by_how_much_later_they_came() -> None:
    table = RequestTable()
    for name, tenant, arrival_s in [
        ("a1", 0, 50.0), ("a2", 0, 60.0), ("b1", 1, 99.0), ("b2", 1, 104.0), ("none", -1, 99.5),
    ]:  # fmt: skip
        table.add(name, tenant=tenant, arrival_s=arrival_s)
    waiting = table.view()
    step = make_step(now_s=105.0, waiting=waiting)
    assert Ageing(scale_s=10.0).score(waiting, step).tolist() == [1.0, 0.5, 1.0, 2 / 3, 1.0]


def test_running_requests_are_aged_beside_those_that_wait() -> None:
    table = RequestTable()
    table.add("a waits", tenant=0, arrival_s=60.0)
    waiting = table.view()
    for name, tenant, arrival_s in [("a", 0, 50.0), ("a2", 0, 70.0), ("c", 7, 90.0)]:
        table.add(name, tenant=tenant, arrival_s=arrival_s)
    running = table.view().take(np.array([1, 2, 3]))
    step = make_step(now_s=105.0, waiting=waiting)
    # Older than all that wait, 10 s later than the oldest, and of a tenant of which nobody waits.
    assert Ageing(scale_s=10.0).score(running, step).tolist() == [1.0, 0.5, 1.0]


class Books:
    """Fairness by hand: tells the term what happens, one event or several at a time."""

    def __init__(self, **params: Any) -> None:
        self.term = Fairness(scale_tokens=1000.0, **params)
        self.table = RequestTable()

    def rows(self, *names: str) -> Requests:
        return self.table.rows(np.array([self.table.slots[n] for n in names], dtype=np.intp))

    def arrive(self, *names: str, prompt: int = 100, weight: float = 1.0) -> None:
        """Requests whose names start with that of their tenant."""
        for name in names:
            tenant = TENANTS[name.rstrip("0123456789")]
            self.table.add(name, tenant=tenant, prompt_tokens=prompt, weight=weight)
        self.term.on_arrived(self.rows(*names), STEP)

    def admit(self, *names: str) -> None:
        for name in names:
            self.table.set(name, first_scheduled_s=1.0)
        self.term.on_admitted(self.rows(*names), STEP)

    def compute(self, *names: str, prefill: int = 0, output: int = 0) -> None:
        n = len(names)
        work = Work(np.full(n, prefill), np.full(n, output), 1, 0.1)
        self.term.on_computed(self.rows(*names), work, STEP)

    def preempt(self, *names: str) -> None:
        self.term.on_preempted(self.rows(*names), STEP)
        for name in names:
            count = int(self.rows(name).preemptions[0])
            self.table.set(name, preemptions=count + 1)

    def end(self, *names: str) -> None:
        for name in names:
            self.table.set(name, status=int(Status.FINISHED))
        self.term.on_finished(self.rows(*names), STEP)

    def served(self, *tenants: str) -> list[float]:
        codes = np.array([TENANTS[tenant] for tenant in tenants])
        return self.term._counters.served[codes].tolist()

    def score(self, *names: str) -> list[float]:
        return self.term.score(self.rows(*names), STEP).tolist()


def test_a_tenant_pays_for_the_prompt_at_admission_and_for_output_as_it_comes() -> None:
    books = Books(prompt_weight=1.5, output_weight=4.0)
    books.arrive("a1", "b1")
    assert books.served("a", "b") == [0.0, 0.0]
    books.admit("a1")
    assert books.served("a", "b") == [150.0, 0.0]
    books.compute("a1", prefill=100)
    assert books.served("a", "b") == [150.0, 0.0]
    books.compute("a1", output=3)
    assert books.served("a", "b") == [162.0, 0.0]


def test_a_share_divides_what_a_tenant_pays() -> None:
    books = Books()
    books.arrive("a1", weight=4.0)
    books.arrive("b1", weight=0.5)
    books.admit("a1", "b1")
    books.compute("a1", "b1", output=10)
    assert books.served("a", "b") == [25.0 + 5.0, 200.0 + 40.0]


def test_several_requests_of_a_tenant_in_one_event_all_pay() -> None:
    books = Books()
    books.arrive("a1", "a2", "b1")
    books.admit("a1", "b1", "a2")
    books.compute("a1", "a2", output=5)
    assert books.served("a", "b") == [220.0, 100.0]


def test_who_was_preempted_does_not_pay_for_its_prompt_again() -> None:
    books = Books()
    books.arrive("a1", "b1")
    books.admit("a1")
    books.compute("a1", prefill=100, output=2)
    books.preempt("a1")
    books.admit("a1")
    books.compute("a1", prefill=102, output=1)
    assert books.served("a") == [106.0]


def test_the_tenant_served_least_scores_one_and_a_lead_of_the_scale_scores_nothing() -> None:
    books = Books()
    books.arrive("a1", "b1", "c1", prompt=250)
    books.arrive("a2", "b2", "c2", prompt=250)
    books.admit("b1")
    books.admit("c1")
    books.compute("c1", output=1000)
    assert books.score("a2", "b2", "c2") == [1.0, 0.75, 0.0]


def test_a_tenant_whose_requests_all_run_scores_one_at_most() -> None:
    books = Books()
    books.arrive("a1", "b1", "b2")
    books.admit("b1")
    books.admit("a1")
    # Only b waits: its counter is the floor, and a stands no better than at it.
    books.compute("b1", output=50)
    assert books.score("a1", "b2") == [1.0, 1.0]


def test_a_tenant_that_was_idle_is_lifted_to_the_least_counter_among_those_that_wait() -> None:
    books = Books()
    books.arrive("a1", "a2", "b1", "b2")
    books.admit("a1")
    books.compute("a1", output=50)
    books.admit("b1")
    books.compute("b1", output=150)
    assert books.served("a", "b") == [200.0, 400.0]
    books.arrive("c1")
    assert books.served("c") == [200.0]
    # Whoever is ahead stays ahead, and whoever waits already is not lifted.
    books.admit("c1")
    books.compute("c1", output=500)
    books.arrive("c2")
    assert books.served("a", "b", "c") == [200.0, 400.0, 1300.0]


def test_the_first_to_come_into_an_empty_queue_is_lifted_to_the_last_that_left_it() -> None:
    books = Books()
    books.arrive("a1", "b1")
    books.admit("b1")
    books.admit("a1")
    books.compute("a1", output=100)
    books.compute("b1", output=20)
    assert books.served("a", "b") == [300.0, 140.0]
    books.arrive("c1")
    assert books.served("c") == [300.0]


def test_who_leaves_the_queue_unserved_sets_no_mark() -> None:
    books = Books()
    books.arrive("a1", "b1")
    books.admit("a1")
    books.compute("a1", output=100)
    books.end("b1")
    books.end("a1")
    books.arrive("c1")
    # b left the queue last, and a was the last that left it to be served.
    assert books.served("c") == [300.0]
    books.arrive("b2")
    assert books.served("b") == [300.0]


def test_a_preempted_request_waits_again() -> None:
    books = Books()
    books.arrive("a1", "b1")
    books.admit("a1", "b1")
    books.compute("a1", output=10)
    books.preempt("a1")
    books.arrive("c1")
    assert books.served("c") == [120.0]
    books.end("a1")
    books.end("c1")
    books.compute("b1", output=500)
    books.arrive("a2")
    # The queue was empty, and c left it last.
    assert books.served("a") == [120.0]


def test_requests_without_a_tenant_share_a_counter() -> None:
    books = Books()
    books.arrive("none1", "none2", "a1")
    books.admit("none1", "none2")
    assert books.served("none", "a") == [200.0, 0.0]


def test_a_running_request_that_ends_leaves_the_counts_of_the_queue_alone() -> None:
    books = Books()
    books.arrive("a1", "a2", "b1")
    books.admit("a1")
    books.end("a1")
    books.admit("b1")
    books.compute("b1", output=500)
    # a2 still waits, so that a is not idle and the floor is a's.
    books.arrive("c1")
    assert books.served("a", "c") == [100.0, 100.0]


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, list[str], int]]:
    """Events of requests that arrive, start, lose their seat, and end; each possible."""
    waiting: list[str] = []
    running: list[str] = []
    events: list[tuple[str, list[str], int]] = []
    for i in range(draw(st.integers(1, 40))):
        kinds = ["arrive"] + ["admit", "end waiting"] * bool(waiting)
        kinds += ["compute", "preempt", "end"] * bool(running)
        kind = draw(st.sampled_from(kinds))
        amount = draw(st.integers(1, 64))
        if kind == "arrive":
            names = [f"{draw(st.sampled_from(sorted(TENANTS)))}{i}{j}" for j in "12"]
            waiting += names
        else:
            source = waiting if kind in {"admit", "end waiting"} else running
            names = draw(st.lists(st.sampled_from(source), min_size=1, max_size=3, unique=True))
            if kind != "compute":
                for name in names:
                    source.remove(name)
            if kind == "admit":
                running += names
            if kind == "preempt":
                waiting += names
        events.append(("end" if kind == "end waiting" else kind, names, amount))
    return events


@given(lives(), st.data())
def test_events_told_singly_or_merged_leave_equal_counters(
    events: list[tuple[str, list[str], int]], data: st.DataObject
) -> None:
    merged, singly = Books(), Books()
    for kind, names, amount in events:
        kwargs = {"arrive": {"prompt": amount}, "compute": {"output": amount}}.get(kind, {})
        getattr(merged, kind)(*names, **kwargs)
        cut = data.draw(st.integers(1, len(names)))
        for part in [names[:cut], *([name] for name in names[cut:])]:
            getattr(singly, kind)(*part, **kwargs)
        assert singly.served(*TENANTS) == merged.served(*TENANTS)
        queued = [
            books.term._counters.queued[np.arange(-1, 3)].tolist() for books in (singly, merged)
        ]
        assert queued[0] == queued[1]
        assert min(queued[0]) >= 0.0


@pytest.mark.parametrize("term", [PriorityTerm(), Urgency(), Fairness(), Shortness(), Ageing()])
def test_no_requests_have_no_scores(term: Any) -> None:
    assert term.score(RequestTable().view(), STEP).tolist() == []
