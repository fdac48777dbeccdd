"""Who may be forgotten: a policy without state says everybody, one with state says so itself."""

from __future__ import annotations

import numpy as np
import pytest
from typing_extensions import override

from batchpolicy import Policy, Requests, Step
from batchpolicy.policies.benefit import Benefit
from batchpolicy.policies.fcfs import FCFS
from batchpolicy.policies.virtual_token_counter import VirtualTokenCounter
from batchpolicy.testing import make_requests, make_step
from batchpolicy.wrappers import Wrapper
from batchpolicy.wrappers.corridor import Corridor

CODES = np.array([0, 1])


class Noting(FCFS):
    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        pass


class NotingWrapper(Wrapper):
    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        super().on_arrived(rows, step)


@pytest.mark.parametrize(
    ("policy", "tenants", "sessions"),
    [
        (FCFS(), True, True),
        (Noting(), False, False),
        (Wrapper(inner=FCFS()), True, True),
        (Wrapper(inner=Noting()), False, False),
        (NotingWrapper(inner=FCFS()), False, False),
        (VirtualTokenCounter(), True, True),
        (Benefit(), True, True),
        (Corridor(inner=FCFS()), True, True),
        (Corridor(inner=Noting()), False, False),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_without_debts_those_go_of_whom_nothing_is_kept(
    policy: Policy, tenants: bool, sessions: bool
) -> None:
    assert policy.forget(CODES, "tenant").tolist() == [tenants] * 2
    assert policy.forget(CODES, "session").tolist() == [sessions] * 2


@pytest.mark.parametrize(
    "policy",
    [VirtualTokenCounter(), Benefit(), Corridor(inner=FCFS())],
    ids=lambda p: type(p).__name__,
)
def test_a_debt_keeps_a_tenant_and_not_a_session(policy: Policy) -> None:
    rows = make_requests(40)
    step = make_step(waiting=rows)
    policy.on_arrived(rows, step)
    first = rows.take(rows.tenant == 0)
    policy.on_admitted(first, step)
    policy.on_finished(first, step)
    # Tenant 0 was served while 1 waits.
    assert policy.forget(np.array([0]), "tenant").tolist() == [False]
    assert policy.forget(np.array([0]), "session").tolist() == [True]
