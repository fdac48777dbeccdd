"""Idle tenants are forgotten without loss: by counters, and over whole replays."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.config import PolicyConfig
from batchpolicy.counters import TokenCounters
from batchpolicy.engine import EngineLimits, Run
from batchpolicy.runner import codes as codes_module
from batchpolicy.runner import ledger as ledger_module
from batchpolicy.runner.codes import Codes
from batchpolicy.runner.table import RequestTable
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine

TENANTS = 4
COST = FormulaCost(base_s=0.02, token_s=1e-4)


class Books:
    """Counters, and a request at a time of each tenant."""

    def __init__(self) -> None:
        self.counters = TokenCounters()
        self.table = RequestTable()

    def rows(self, name: str) -> object:
        return self.table.rows(np.array([self.table.slots[name]]))

    def arrive(self, name: str, tenant: int) -> None:
        self.table.add(name, tenant=tenant)
        self.counters.arrived(self.rows(name))  # type: ignore[arg-type]

    def start(self, name: str, charge: float) -> None:
        self.table.set(name, first_scheduled_s=1.0)
        self.counters.left(self.rows(name))  # type: ignore[arg-type]
        self.counters.charge(self.rows(name), np.array([charge]))  # type: ignore[arg-type]

    def end(self, name: str) -> None:
        self.counters.left(self.rows(name))  # type: ignore[arg-type]
        self.table.remove(name)


def test_a_debt_is_remembered_until_the_floor_has_passed_it() -> None:
    books = Books()
    books.arrive("b1", tenant=1)
    books.arrive("a1", tenant=0)
    books.start("a1", charge=500.0)
    books.end("a1")
    # b waits at 0: who forgot a's 500 now would let it come back at the floor.
    assert books.counters.forget(np.array([0])).tolist() == [False]
    assert books.counters.served.at(0) == 500.0
    books.arrive("b2", tenant=1)
    books.start("b1", charge=499.0)
    assert books.counters.forget(np.array([0])).tolist() == [False]
    books.arrive("b3", tenant=1)
    books.start("b2", charge=1.0)
    assert books.counters.forget(np.array([0])).tolist() == [True]
    # Whoever has the code now is lifted, as a would have been.
    books.arrive("new", tenant=0)
    assert books.counters.served.at(0) == 500.0


def test_the_last_to_leave_can_be_forgotten_and_lifts_still() -> None:
    books = Books()
    books.arrive("a1", tenant=0)
    books.start("a1", charge=70.0)
    books.end("a1")
    assert books.counters.forget(np.array([0, 1])).tolist() == [True, True]
    books.arrive("b1", tenant=1)
    assert books.counters.served.at(1) == 70.0


def test_a_floor_that_falls_when_who_waits_gives_up_lets_nobody_go() -> None:
    books = Books()
    for name, tenant in (("a1", 0), ("c1", 2), ("d1", 3), ("d2", 3)):
        books.arrive(name, tenant)
    books.start("a1", charge=150.0)
    books.start("d1", charge=200.0)
    books.start("c1", charge=100.0)
    books.end("a1")
    # d waits at 200; when it gives up, the floor is that of c, the last one served.
    assert books.counters.floor() == 200.0
    assert books.counters.forget(np.array([0])).tolist() == [False]
    books.end("d2")
    books.arrive("b1", tenant=1)
    assert books.counters.served.at(1) == 100.0


def test_nobody_gains_by_coming_back_after_a_booking_was_paid_back() -> None:
    books = Books()
    books.arrive("b1", tenant=1)
    books.start("b1", charge=100.0)
    books.arrive("b2", tenant=1)
    books.arrive("a1", tenant=0)
    books.end("a1")
    assert books.counters.forget(np.array([0])).tolist() == [True]
    # Of the 100, 60 were for output that did not come.
    books.counters.charge(books.rows("b1"), np.array([-60.0]))  # type: ignore[arg-type]
    books.arrive("a2", tenant=0)
    assert books.counters.served.at(0) == 100.0


events = st.tuples(
    st.sampled_from(["arrive", "start", "end", "forget"]), st.integers(0, TENANTS - 1)
)


@given(st.lists(st.tuples(events, st.integers(0, 50)), max_size=60))
@settings(max_examples=300, deadline=None)
def test_whom_others_compete_with_has_the_same_counter_as_if_nobody_was_forgotten(
    history: list[tuple[tuple[str, int], int]],
) -> None:
    kept, forgetful = Books(), Books()
    waiting: dict[int, list[str]] = {t: [] for t in range(TENANTS)}
    running: dict[int, list[str]] = {t: [] for t in range(TENANTS)}
    for i, ((what, tenant), charge) in enumerate(history):
        if what == "arrive":
            waiting[tenant].append(f"r{i}")
            for books in (kept, forgetful):
                books.arrive(f"r{i}", tenant)
        elif what == "start" and waiting[tenant]:
            name = waiting[tenant].pop(0)
            running[tenant].append(name)
            for books in (kept, forgetful):
                books.start(name, float(charge))
        elif what == "end" and running[tenant] + waiting[tenant]:
            name = (running[tenant] or waiting[tenant]).pop(0)
            for books in (kept, forgetful):
                books.end(name)
        elif what == "forget" and not running[tenant] and not waiting[tenant]:
            forgetful.counters.forget(np.array([tenant]))
        for each, names in waiting.items():
            if names:
                assert forgetful.counters.served.at(each) == kept.counters.served.at(each)


class Shared(Exception):
    """A name got the code that all share for whom there is none."""


class Few(Codes):
    def __call__(self, name: str) -> int:
        code = super().__call__(name)
        if code == self._limit:
            raise Shared
        return code


def replayed(workload: Workload, policy: str | dict[str, object]) -> Run:
    return LightEngine().replay(
        workload,
        PolicyConfig.model_validate({"policy": policy}),
        EngineLimits(max_num_seqs=1, max_num_batched_tokens=64, kv_blocks=64),
        COST,
    )


CORRIDOR = {"name": "corridor", "params": {"tokens": 40.0, "inner": "shortest-first"}}


@pytest.mark.parametrize("policy", ["virtual-token-counter", "benefit", CORRIDOR], ids=str)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.floats(0, 0.4), st.integers(1, 60), st.integers(1, 20)),
        min_size=20,
        max_size=40,
    )
)
@settings(max_examples=40, deadline=None)
def test_a_replay_with_few_codes_goes_as_one_with_many(
    policy: str | dict[str, object], sizes: list[tuple[int, float, int, int]]
) -> None:
    at_s, requests = 0.0, []
    for i, (tenant, gap_s, prompt, output) in enumerate(sizes):
        at_s += gap_s
        requests.append(
            WorkloadRequest(
                id=f"r{i}",
                arrival_s=at_s,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=output,
                tenant=f"t{tenant}",
            )
        )
    workload = Workload("few", tuple(requests))
    plain = replayed(workload, policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes_module, "SWEEP", 8)
        patch.setattr(ledger_module, "Codes", partial(Few, limit=4))
        try:
            few = replayed(workload, policy)
        except Shared:
            return
    assert few.digest() == plain.digest()
