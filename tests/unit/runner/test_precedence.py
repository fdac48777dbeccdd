"""Which rule goes before which: never-fits, overdue, class, corridor, benefit.

One test for each pair of neighbours, under the policy ``benefit`` with a corridor and
displacement by class.
"""

from __future__ import annotations

from typing import Any

from batchpolicy.config import Bounds
from batchpolicy.policies.benefit import Benefit
from tests.support.rig import Rig


def rig(**policy: Any) -> Rig:
    """Only fairness, so that whoever is served least has the best benefit."""
    given = {"lambda": 1.0, "priority": {"weight": 0.0}, "urgency": {"weight": 0.0}, **policy}
    given = {"corridor_tokens": 100.0, **given}
    bounds = Bounds(max_wait_s=2.5, turns="none")
    return Rig(Benefit.model_validate(given), parts={"bounds": bounds}, total_kv_blocks=20)


def led_by_a(rig: Rig, **b1: Any) -> None:
    """Tenant a is served 120 weighted tokens while b1 waits, 20 more than the corridor is wide."""
    rig.running("a0", tenant="a", priority=5)
    rig.arrive("b1", tenant="b", **b1)
    rig.plan(seats=0)
    for _ in range(60):
        rig.decode("a0")


def test_what_can_never_fit_ends_and_is_never_overdue() -> None:
    one = rig()
    one.arrive("never", prompt=201)
    one.arrive("fits", prompt=10)
    plan = one.plan(seats=0)
    assert [name for name, _ in plan.refuse] == ["never"]
    for _ in range(5):
        plan = one.plan()
    assert (plan.admit, plan.refuse) == (["fits"], [])
    assert one.counters["overdue"] == 1


def test_an_overdue_request_goes_before_a_better_class() -> None:
    one = rig()
    one.running("runs", priority=5)
    one.arrive("overdue", priority=5)
    for _ in range(3):
        one.plan(seats=0)
    one.arrive("urgent", priority=0)
    assert one.plan(seats=1).admit == ["overdue", "urgent"]
    # Without a free seat, urgent would displace; the seat that comes free is another's.
    plan = one.plan(seats=0)
    assert (plan.admit, plan.preempt) == (["overdue", "urgent"], [])


def test_a_class_displaces_whatever_the_corridor_says_of_who_runs() -> None:
    one = rig()
    one.running("b0", tenant="b", priority=6)
    led_by_a(one, priority=0)
    # a leads b by more than the corridor; still the worst class goes, b's own.
    assert one.plan(seats=0).preempt == ["b0"]
    one = rig()
    one.running("b0", tenant="b", priority=5)
    led_by_a(one, priority=0)
    # Within one class whoever loses least goes: 10 tokens are computed, and 70 of a's.
    assert one.plan(seats=0).preempt == ["b0"]


def test_a_better_class_waits_for_no_worse_one_in_the_corridor() -> None:
    one = rig()
    led_by_a(one, priority=9)
    one.arrive("a1", tenant="a", priority=-9)
    assert one.plan(seats=2).admit == ["b1", "a1"]
    one = rig()
    led_by_a(one, priority=-9)
    one.arrive("a1", tenant="a", priority=9)
    assert one.plan(seats=2).admit == ["b1"]


def test_the_corridor_goes_before_benefit() -> None:
    for width, admitted in ((100.0, ["b1"]), (10_000.0, ["a1", "b1"])):
        one = rig(urgency={"weight": 5.0}, corridor_tokens=width)
        led_by_a(one)
        one.arrive("a1", tenant="a", ttft_slo_s=0.5)
        # By benefit a1 comes first; in the corridor it may not, as b waits and was served less.
        assert one.plan(seats=2).admit == admitted


def test_an_overdue_request_starts_outside_the_corridor_and_is_counted() -> None:
    one = rig()
    one.running("a0", tenant="a", priority=5)
    one.arrive("a1", tenant="a", priority=5)
    one.plan(seats=0)
    one.arrive("b1", tenant="b", priority=5)
    one.plan(seats=0)
    for _ in range(60):
        one.decode("a0")
    assert one.plan(seats=1).admit == ["b1"]
    # By now a1 has waited for 3 s, and b1 for 2.
    assert one.plan(seats=1).admit == ["a1", "b1"]
    one.start("a1")
    assert one.counters["bound_over_mask"] == 1


def test_within_the_corridor_benefit_decides() -> None:
    one = rig(corridor_tokens=10_000.0)
    led_by_a(one)
    one.arrive("a1", tenant="a")
    assert one.plan().admit == ["b1", "a1"]
