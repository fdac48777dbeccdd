from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.policies.virtual_token_counter import VirtualTokenCounter
from batchpolicy.policy import Work
from batchpolicy.runner.table import RequestTable
from batchpolicy.terms import Fairness
from batchpolicy.testing import make_step
from tests.support.mini_engine import Job, MiniEngine
from tests.support.rig import Rig


def test_tenants_with_equal_counters_alternate_within_one_step() -> None:
    rig = Rig(VirtualTokenCounter())
    rig.arrive("a1", "a2", "a3", tenant="a")
    rig.arrive("b1", "b2", tenant="b")
    assert rig.plan().admit == ["a1", "b1", "a2", "b2", "a3"]


def test_a_tenant_that_was_served_more_waits_until_the_other_has_caught_up() -> None:
    rig = Rig(VirtualTokenCounter())
    rig.arrive("a1", tenant="a", prompt=30)
    rig.arrive("b1", "b2", "b3", "b4", tenant="b")
    rig.plan()
    rig.start("a1", tokens=30)
    rig.arrive("a2", tenant="a")
    # 30 tokens of prompt and an output token for 2 against four prompts of 10.
    assert rig.plan().admit == ["b1", "b2", "b3", "b4", "a2"]


def test_a_tenant_of_twice_the_weight_gets_twice_as_many_turns() -> None:
    rig = Rig(VirtualTokenCounter(fairness=Fairness(weights={"gold": 2.0})))
    rig.arrive("g1", "g2", "g3", "g4", tenant="gold")
    rig.arrive("f1", "f2", tenant="free")
    assert rig.plan().admit == ["g1", "f1", "g2", "g3", "f2", "g4"]


def test_within_a_tenant_the_shortest_can_come_first_and_turns_stay_as_they_are() -> None:
    rig = Rig(VirtualTokenCounter(within_tenant="shortest"))
    rig.arrive("a-long", tenant="a", prompt=30)
    rig.arrive("a-short", tenant="a", prompt=10)
    rig.arrive("b-long", tenant="b", prompt=30)
    rig.arrive("b-short", tenant="b", prompt=20)
    # a takes 10, b 20, then a again, which is behind b by 20 afterwards.
    assert rig.plan().admit == ["a-short", "b-short", "a-long", "b-long"]


def test_by_arrival_the_first_of_a_tenant_comes_first_however_long_it_is() -> None:
    rig = Rig(VirtualTokenCounter())
    rig.arrive("a-long", tenant="a", prompt=30)
    rig.arrive("a-short", tenant="a", prompt=10)
    assert rig.plan().admit == ["a-long", "a-short"]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=6, max_size=20),
    st.integers(1, 4),
)
@settings(max_examples=100, deadline=None)
def test_counters_of_backlogged_tenants_stay_within_the_bound(
    sizes: list[tuple[int, int]], seats: int
) -> None:
    policy = VirtualTokenCounter()
    engine = MiniEngine(policy, seats=seats, budget=200, blocks=1000, preempt="never")
    engine.coming = [
        Job(f"r{i}", prompt=prompt, outputs=outputs, tenant="ab"[i % 2])
        for i, (prompt, outputs) in enumerate(sizes)
    ]
    # All that runs may belong to one tenant: M tokens of output, each at twice the price.
    prompts, outputs = max(p for p, _ in sizes), max(o for _, o in sizes)
    bound = 2.0 * max(prompts, 2.0 * seats * outputs)
    codes = np.array([0, 1])
    while engine.unserved():
        engine.step()
        if {job.tenant for job in engine.waiting.values()} == {"a", "b"}:
            a, b = policy.fairness._counters.served[codes].tolist()
            assert abs(a - b) <= bound


def test_a_part_of_the_prediction_is_booked_and_the_rest_charged_as_it_comes() -> None:
    term = Fairness(book=True, book_share=0.5)
    table = RequestTable()
    table.add("a1", tenant=0, prompt_tokens=10, max_tokens=100, predicted_output_tokens=8.0)
    rows = table.view()

    def served() -> float:
        return float(term.served(rows)[0])

    def put_out(tokens: int) -> None:
        work = Work(np.zeros(1, dtype=np.int64), np.array([tokens]), 1, 0.1)
        term.on_computed(rows, work, make_step())

    term.on_arrived(rows, make_step())
    term.on_admitted(rows, make_step())
    # Half of 8 tokens at 2 each.
    assert served() == 10.0 + 8.0
    put_out(3)
    assert served() == 18.0
    put_out(3)
    assert served() == 18.0 + 4.0
    term.on_finished(rows, make_step())
    assert served() == 10.0 + 2.0 * 6


def test_what_was_booked_and_did_not_come_is_paid_back() -> None:
    term = Fairness(book=True, book_share=0.5)
    table = RequestTable()
    table.add("a1", tenant=0, prompt_tokens=10, max_tokens=100, predicted_output_tokens=8.0)
    rows = table.view()
    term.on_arrived(rows, make_step())
    term.on_admitted(rows, make_step())
    work = Work(np.zeros(1, dtype=np.int64), np.array([1]), 1, 0.1)
    term.on_computed(rows, work, make_step())
    term.on_finished(rows, make_step())
    assert float(term.served(rows)[0]) == 10.0 + 2.0 * 1
