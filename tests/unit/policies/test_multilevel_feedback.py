from __future__ import annotations

import numpy as np

from batchpolicy.policies.multilevel_feedback import MultilevelFeedback
from batchpolicy.policy import Work
from batchpolicy.requests import Requests
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from tests.support.rig import Rig

LEVELS = {"quantum_tokens": 100.0, "quantum_ratio": 2.0, "levels": 4, "output_weight": 2.0}
"""They take 100, 200 and 400 tokens of service, and what is more than 700."""


def policy(**params: float) -> MultilevelFeedback:
    return MultilevelFeedback.model_validate({**LEVELS, **params})


def prompts(*tokens: int) -> tuple[RequestTable, Requests]:
    """All came at 100 s, which is when ``make_step`` is."""
    table = RequestTable()
    for i, prompt in enumerate(tokens):
        table.add(f"r{i}", arrival_s=100.0, prompt_tokens=prompt, max_tokens=500)
    return table, table.view()


def served(feedback: MultilevelFeedback, rows: Requests, prefill: int, output: int) -> None:
    each = np.ones(len(rows), dtype=np.int64)
    feedback.on_computed(rows, Work(prefill * each, output * each, 1, 0.1), make_step())


def levels(feedback: MultilevelFeedback, rows: Requests, now_s: float = 100.0) -> list[float]:
    return (-feedback.benefit(rows, make_step(now_s=now_s))).tolist()


def test_a_prompt_joins_the_first_level_whose_quantum_it_fits_into() -> None:
    table, rows = prompts(1, 100, 101, 400, 401, 10_000, 401)
    table.set("r6", cached_tokens=301)
    feedback = policy()
    feedback.on_arrived(rows, make_step())
    assert levels(feedback, rows) == [0.0, 0.0, 1.0, 2.0, 3.0, 3.0, 0.0]


def test_service_leads_down_from_the_level_that_was_joined() -> None:
    _, rows = prompts(40, 150)
    feedback = policy()
    feedback.on_arrived(rows, make_step())
    feedback.on_admitted(rows, make_step())
    assert levels(feedback, rows) == [0.0, 1.0]
    served(feedback, rows.take(np.array([0])), 40, 0)
    served(feedback, rows.take(np.array([1])), 150, 0)
    assert levels(feedback, rows) == [0.0, 1.0]
    # Of the first level 60 are left, of the second 50: 30 and 25 tokens of output.
    served(feedback, rows, 0, 24)
    assert levels(feedback, rows) == [0.0, 1.0]
    served(feedback, rows, 0, 1)
    assert levels(feedback, rows) == [0.0, 2.0]
    served(feedback, rows, 0, 5)
    assert levels(feedback, rows) == [1.0, 2.0]
    served(feedback, rows, 0, 10_000)
    assert levels(feedback, rows) == [3.0, 3.0]


def test_who_waited_long_enough_is_in_the_first_level_and_begins_there_again() -> None:
    _, rows = prompts(300)
    feedback = policy(promote_s=5.0)
    feedback.on_arrived(rows, make_step())
    assert levels(feedback, rows, 104.9) == [2.0]
    assert levels(feedback, rows, 105.0) == [0.0]
    feedback.on_admitted(rows, make_step(now_s=105.0))
    # While it runs it does not wait, however long that takes.
    assert levels(feedback, rows, 200.0) == [0.0]
    served(feedback, rows, 300, 0)
    assert levels(feedback, rows, 200.0) == [2.0]


def test_who_started_before_that_long_a_wait_was_over_is_not_promoted_by_being_told_late() -> None:
    table, rows = prompts(300)
    feedback = policy(promote_s=5.0)
    feedback.on_arrived(rows, make_step())
    table.set("r0", first_scheduled_s=101.0)
    # Events wait while nothing is to be decided, here for over five seconds.
    feedback.on_admitted(table.view(), make_step(now_s=108.0))
    served(feedback, table.view(), 300, 0)
    assert levels(feedback, table.view(), 108.0) == [2.0]
    served(feedback, table.view(), 0, 51)
    assert levels(feedback, table.view(), 108.0) == [3.0]


def test_the_wait_begins_anew_with_a_preemption_and_the_level_stays() -> None:
    table, rows = prompts(300)
    feedback = policy(promote_s=5.0)
    feedback.on_arrived(rows, make_step())
    feedback.on_admitted(rows, make_step())
    served(feedback, rows, 300, 0)
    feedback.on_preempted(rows, make_step(now_s=110.0))
    table.set("r0", preemptions=1)
    rows = table.view()
    assert levels(feedback, rows, 114.9) == [2.0]
    assert levels(feedback, rows, 115.0) == [0.0]
    feedback.on_admitted(rows, make_step(now_s=114.9))
    # It stood at 300 + 300; what is computed again is no service, 49 tokens of output are.
    served(feedback, rows, 300, 49)
    assert levels(feedback, rows, 114.9) == [2.0]
    served(feedback, rows, 0, 1)
    assert levels(feedback, rows, 114.9) == [3.0]


def test_keeping_is_worth_the_level_without_what_would_be_lost() -> None:
    table, rows = prompts(150, 300)
    for name, computed in (("r0", 150), ("r1", 320)):
        table.set(name, computed_tokens=computed)
    rows = table.view()
    feedback = policy(recompute_weight=0.5)
    feedback.on_arrived(rows, make_step())
    feedback.on_admitted(rows, make_step())
    served(feedback, rows, 0, 225)
    # At 100 + 450 and 300 + 450: without half of 150 and of 320 at 475 and 590.
    assert levels(feedback, rows) == [2.0, 3.0]
    assert feedback.keep_benefit(rows, make_step()).tolist() == [-2.0, -2.0]
    served(feedback, rows, 0, 100)
    # At 675 and 790, as they have less to lose than they were served.
    assert feedback.keep_benefit(rows, make_step()).tolist() == [-2.0, -3.0]


def test_one_of_a_better_level_displaces_and_an_equal_one_does_not() -> None:
    rig = Rig(policy(quantum_tokens=10.0, recompute_weight=0.0), preempt="benefit", max_running=1)
    rig.running("runs")
    # Its prompt of 10 and a token that counts double: it is in the second level.
    rig.arrive("second level", prompt=20)
    assert rig.plan(seats=0).preempt == []
    rig.arrive("first level", prompt=10)
    plan = rig.plan(seats=0)
    assert (plan.admit[0], plan.preempt) == ("first level", ["runs"])


def test_a_long_one_starts_under_a_stream_of_short_ones() -> None:
    rig = Rig(policy(promote_s=3.0))
    rig.arrive("long", prompt=150)
    first: list[str] = []
    for i in range(4):
        rig.arrive(f"short {i}", prompt=10)
        first.append(rig.plan(seats=1).admit[0])
    # It came at 1 s; at 4 s it is in the first level too, and came before all in it.
    assert first == ["short 0", "short 0", "short 0", "long"]
