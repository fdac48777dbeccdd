from __future__ import annotations

import numpy as np

from batchpolicy.policies.least_attained_service import LeastAttainedService
from batchpolicy.policy import Work
from batchpolicy.requests import Requests
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from tests.support.rig import Rig

LEVELS = {"quantum_tokens": 100.0, "quantum_ratio": 2.0, "levels": 4, "output_weight": 2.0}
"""They take 100, 200 and 400 tokens of service, and what is more than 700."""


def policy(**params: float) -> LeastAttainedService:
    return LeastAttainedService.model_validate({**LEVELS, **params})


def levels(attained: LeastAttainedService, rows: Requests, now_s: float = 100.0) -> list[float]:
    return (-attained.benefit(rows, make_step(now_s=now_s))).tolist()


def sessions(*codes: int) -> Requests:
    table = RequestTable()
    for i, session in enumerate(codes):
        table.add(f"r{i}", arrival_s=100.0, session=session, prompt_tokens=500)
    return table.view()


def serve(attained: LeastAttainedService, rows: Requests, row: int, tokens: int) -> None:
    work = Work(np.array([tokens]), np.array([0]), 1, 0.1)
    attained.on_computed(rows.take(np.array([row])), work, make_step())


def test_requests_of_a_session_have_one_account_and_others_their_own() -> None:
    rows, attained = sessions(7, 7, 8, -1, -1), policy()
    attained.on_arrived(rows, make_step())
    assert levels(attained, rows) == [0.0] * 5
    serve(attained, rows, 0, 60)
    serve(attained, rows, 1, 40)
    serve(attained, rows, 3, 300)
    assert levels(attained, rows) == [1.0, 1.0, 0.0, 2.0, 0.0]


def test_a_later_turn_stands_where_its_session_is() -> None:
    rig = Rig(policy(quantum_tokens=10.0))
    rig.running("first turn", session="old")
    rig.arrive("next turn", session="old")
    rig.arrive("new")
    # Ten of the prompt and a token that counts double: the second level.
    assert rig.plan().admit == ["new", "next turn"]


def test_who_waited_long_enough_goes_first_and_its_session_begins_again() -> None:
    rows, attained = sessions(7, 7), policy(promote_s=5.0)
    attained.on_arrived(rows, make_step())
    first, second = rows.take(np.array([0])), rows.take(np.array([1]))
    attained.on_admitted(first, make_step())
    serve(attained, rows, 0, 800)
    assert levels(attained, rows, 104.9) == [3.0, 3.0]
    assert levels(attained, rows, 105.0) == [3.0, 0.0]
    attained.on_admitted(second, make_step(now_s=105.0))
    assert levels(attained, rows, 105.0) == [0.0, 0.0]
    serve(attained, rows, 1, 100)
    assert levels(attained, rows, 105.0) == [1.0, 1.0]


def test_a_forgotten_session_begins_again_and_tenants_have_nothing_to_forget() -> None:
    rows, attained = sessions(7, 8), policy()
    attained.on_arrived(rows, make_step())
    serve(attained, rows, 0, 800)
    serve(attained, rows, 1, 800)
    assert attained.forget(np.array([7]), "tenant").tolist() == [True]
    assert levels(attained, rows) == [3.0, 3.0]
    assert attained.forget(np.array([7]), "session").tolist() == [True]
    assert levels(attained, rows) == [0.0, 3.0]


def test_a_session_served_less_displaces_one_served_more() -> None:
    rig = Rig(policy(quantum_tokens=10.0, recompute_weight=0.0), preempt="benefit", max_running=1)
    rig.running("runs", session="old")
    rig.arrive("same", session="old")
    assert rig.plan(seats=0).preempt == []
    rig.arrive("other", session="new")
    plan = rig.plan(seats=0)
    assert (plan.admit[0], plan.preempt) == ("other", ["runs"])
