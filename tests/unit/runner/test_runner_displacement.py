from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.config import LimitSettings, Memory
from batchpolicy.policy import Ranking, Step, Tags
from batchpolicy.preemption import Preemption
from batchpolicy.requests import FloatArray, IntArray, Requests, Status
from batchpolicy.runner import Plan
from batchpolicy.runner.displacement import MAX_VICTIMS_A_STEP
from batchpolicy.runner.triage import VAIN_STEPS
from tests.support.policies import Arrival, Patched
from tests.support.rig import Rig

MAX_EACH = Preemption(by="class").max_each


class Dry:
    """A probe that knows sizes by id, and says what it was asked."""

    def __init__(self, needs: dict[str, int], held: dict[str, int]) -> None:
        self.needs, self.frees = needs, held
        self.asked: list[str] = []

    def prefix(self, ids: Sequence[str]) -> tuple[IntArray, IntArray]:
        self.asked += ids
        return np.zeros(len(ids), np.int64), np.array([self.needs[i] for i in ids])

    def held(self, ids: Sequence[str]) -> IntArray:
        return np.array([self.frees[i] for i in ids], dtype=np.int64)


class Ageless(Arrival):
    tags: ClassVar[Tags] = Tags(native="fcfs")

    @override
    def native_order(self) -> str | None:
        return "fcfs"


def test_a_more_urgent_request_displaces_the_least_urgent_one_for_its_seat() -> None:
    rig = Rig(Arrival(), max_running=3)
    for name, priority in [("p5", 5), ("p9", 9), ("p7", 7)]:
        rig.running(name, priority=priority)
    rig.arrive("p6", priority=6)
    assert rig.plan(seats=0) == Plan(["p6"], ["p9"])
    assert rig.counters["displaced"] == 1


def test_an_equal_or_less_urgent_request_displaces_nobody() -> None:
    rig = Rig(Arrival())
    rig.running("p5", priority=5)
    rig.arrive("equal", priority=5)
    rig.arrive("less", priority=6)
    assert rig.plan(seats=0) == Plan()


def test_nobody_is_displaced_where_the_file_says_never() -> None:
    rig = Rig(Arrival(), preempt="never")
    rig.running("p5", priority=5)
    rig.arrive("urgent", priority=0)
    assert rig.plan(seats=0) == Plan()
    assert rig.plan(blocks=0, seats=1) == Plan(["urgent"])


def test_just_enough_are_displaced_for_blocks_the_needless_being_spared() -> None:
    rig = Rig(Arrival())
    # In the order in which they would go: 2, 6 and 2 blocks.
    rig.running("a", prompt=20, priority=1)
    rig.running("b", prompt=60, priority=1)
    rig.running("c", prompt=20, priority=1)
    rig.arrive("needs 5", prompt=50, priority=0)
    # c, b and a put out one token each and take their next block.
    assert rig.plan(blocks=3) == Plan(["needs 5"], ["b"])


def test_enough_is_freed_or_nobody_goes() -> None:
    rig = Rig(Arrival())
    rig.running("a", prompt=20, priority=1)
    rig.running("kept", prompt=50, priority=0)
    rig.arrive("needs 9", prompt=90, priority=0)
    rig.arrive("needs 4", prompt=40, priority=0)
    # a frees 3 blocks, its next one included: 3 + 2 left are not 9, and 4 would do.
    plan = rig.plan(blocks=4)
    assert plan == Plan(["needs 4", "needs 9"], ["a"])


def test_what_is_freed_and_not_used_serves_the_next() -> None:
    rig = Rig(Arrival(), parts={"memory": Memory(look_ahead=False)})
    rig.running("spared", prompt=60, priority=1)
    rig.running("victim", prompt=60, priority=1)
    rig.arrive("needs 3", prompt=30, priority=0)
    rig.arrive("needs 2", prompt=20, priority=0)
    # The victim frees 6 blocks, and spares itself its next.
    assert rig.plan(blocks=2) == Plan(["needs 3", "needs 2"], ["victim"])
    rig.arrive("needs 4", prompt=40, priority=0)
    assert rig.plan(blocks=2) == Plan(["needs 3", "needs 2", "needs 4"], ["victim", "spared"])


def test_who_was_displaced_for_one_frees_nothing_for_the_next() -> None:
    rig = Rig(Arrival())
    # In the order in which they would go: 2, 6 and 2 blocks.
    rig.running("c", prompt=15, priority=1)
    rig.running("b", prompt=55, priority=1)
    rig.running("a", prompt=15, priority=1)
    rig.arrive("needs 5", "needs 5 too", prompt=50, priority=0)
    # b leaves 1 block over, and the second lacks what both others free.
    plan = rig.plan(blocks=0)
    assert plan.admit == ["needs 5", "needs 5 too"]
    assert plan.preempt[0] == "b"
    assert sorted(plan.preempt[1:]) == ["a", "c"]


STANDS = {"limits": LimitSettings(long_prompts_give_way=False)}


def test_nobody_is_displaced_for_tokens_that_other_running_requests_would_take() -> None:
    rig = Rig(Arrival(), max_token_budget=20, parts=STANDS)
    rig.running("decodes", priority=5)
    rig.arrive("prefills", prompt=100, priority=0)
    rig.plan()
    rig.runner.scheduled({"decodes": 1, "prefills": 19}, {"prefills": 0}, [])
    rig.runner.produced({"decodes": 1}, {}, 0.5)
    rig.arrive("urgent", priority=0)
    # 81 tokens of the prompt are left: what the victim gave up would go to them.
    assert rig.plan() == Plan(["urgent"], [], reorder=True)


def test_nobody_is_displaced_for_tokens_that_a_request_offered_before_would_take() -> None:
    rig = Rig(Arrival(), max_token_budget=20)
    rig.running("victim", priority=5)
    rig.arrive("long", prompt=100, priority=5)
    rig.arrive("urgent", priority=0)
    assert rig.plan() == Plan(["long", "urgent"], [])


def test_a_prefill_is_displaced_when_that_leaves_tokens() -> None:
    rig = Rig(Arrival(), max_token_budget=20, parts=STANDS)
    rig.arrive("long", prompt=100, priority=5)
    rig.plan()
    rig.runner.scheduled({"long": 20}, {"long": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    rig.arrive("urgent", priority=0)
    assert rig.plan() == Plan(["urgent"], ["long"], reorder=True)


def test_a_request_is_displaced_a_few_times_only_and_a_new_one_starts_afresh() -> None:
    rig = Rig(Arrival(), max_running=1)
    rig.running("victim", priority=5)
    for i in range(MAX_EACH):
        urgent = f"urgent {i}"
        rig.arrive(urgent, priority=0)
        assert rig.plan(seats=0).preempt == ["victim"]
        rig.runner.scheduled({urgent: 10}, {urgent: 0}, ["victim"])
        rig.runner.produced({urgent: 1}, {}, 0.5)
        rig.runner.finished(urgent, Status.FINISHED)
        rig.plan()
        rig.start("victim", tokens=11)
    # A second arrival of a known id is none.
    rig.arrive("victim", priority=5)
    rig.arrive("late", priority=0)
    # Whom nobody may make room for is not even offered.
    assert rig.plan(seats=0) == Plan()
    rig.runner.finished("victim", Status.FINISHED)
    rig.plan()
    rig.arrive("victim", priority=5)
    rig.start("victim")
    assert rig.plan(seats=0) == Plan(["late"], ["victim"])


def test_what_each_victim_holds_is_probed_only_when_blocks_are_short() -> None:
    class Probe:
        def __init__(self) -> None:
            self.asked: list[list[str]] = []

        def prefix(self, ids: Sequence[str]) -> tuple[IntArray, IntArray]:
            return np.zeros(len(ids), dtype=np.int64), np.full(len(ids), 1)

        def held(self, ids: Sequence[str]) -> IntArray:
            self.asked.append(list(ids))
            return np.array([-1 if i == "v2" else 1 for i in ids])

    probe = Probe()
    rig = Rig(Arrival(), max_running=3, probe=probe)
    rig.running("v0", "v1", "v2", priority=5)
    rig.arrive("urgent", priority=0)
    # v2 would be first to go, but cannot be freed now; only then are the others looked at.
    assert rig.plan(seats=0).preempt == ["v1"]
    assert probe.asked == [["v2"], ["v2", "v1", "v0"]]


def test_the_victims_of_one_step_are_bounded() -> None:
    rig = Rig(Arrival(), max_running=40, max_token_budget=1000)
    rig.running(*(f"v{i}" for i in range(30)), priority=5)
    rig.arrive(*(f"u{i}" for i in range(30)), priority=0)
    plan = rig.plan(seats=0)
    assert plan.preempt == [f"v{i}" for i in range(29, 29 - MAX_VICTIMS_A_STEP, -1)]
    assert plan.admit[:MAX_VICTIMS_A_STEP] == [f"u{i}" for i in range(MAX_VICTIMS_A_STEP)]


def test_without_blocks_for_running_requests_the_least_urgent_goes_and_nobody_comes() -> None:
    rig = Rig(Arrival())
    for name, priority in [("p1", 1), ("p3", 3), ("p2", 2)]:
        rig.running(name, priority=priority)
    rig.arrive("urgent", priority=0)
    # Each of the three takes its second block; p3 frees one and needs none.
    assert rig.plan(blocks=1) == Plan([], ["p3"], reorder=True)
    assert rig.counters["displaced"] == 0


def test_a_batch_never_displaces_all_of_itself() -> None:
    rig = Rig(Arrival())
    rig.running("alone")
    assert rig.plan(blocks=0) == Plan([], [], reorder=True)


def test_the_order_to_keep_is_decodes_then_the_reverse_of_that_of_displacement() -> None:
    def worth(rows: Requests, step: Step) -> Any:
        return (rows.prompt_tokens % 10).astype(np.float64)

    def tier(rows: Requests, step: Step) -> Any:
        return (rows.prompt_tokens == 13).astype(np.int64)

    rig = Rig(Patched.over(Arrival(), keep_benefit=worth, tier=tier))
    rig.running("second tier", prompt=13)
    rig.running("worth 1", prompt=11)
    rig.running("worth 2", prompt=12)
    rig.running("worth 2, later", prompt=12)
    rig.running("less urgent", prompt=19, priority=1)
    rig.arrive("prefills", prompt=30, priority=-1)
    rig.plan()
    rig.runner.scheduled({"prefills": 10}, {"prefills": 0}, [])
    ids = ["prefills", "x", "less urgent", "second tier", "worth 2, later", "worth 1", "worth 2"]
    assert rig.runner.keep_order(ids) == [
        "worth 2", "worth 2, later", "worth 1", "second tier", "less urgent", "prefills", "x",
    ]  # fmt: skip
    assert rig.runner.keep_order([]) == []
    assert rig.runner.keep_order(["x", "y"]) == ["x", "y"]


def test_who_cannot_be_freed_now_is_no_victim() -> None:
    probe = Dry({}, {"shared": 0, "in flight": -1, "older": 1})
    rig = Rig(Arrival(), probe=probe)
    rig.running("older", "shared", "in flight", priority=5)
    rig.arrive("urgent", priority=0)
    assert rig.plan(seats=0) == Plan(["urgent"], ["shared"])


def test_a_policy_equal_to_the_engines_own_order_displaces_nobody_unless_told_to() -> None:
    for preempt, victims in [(None, []), ("class", ["a"])]:
        rig = Rig(Ageless(), preempt=preempt)
        rig.running("a", priority=5)
        rig.arrive("urgent", priority=0)
        assert rig.plan(seats=0).preempt == victims


def test_a_request_with_a_target_waits_for_half_of_it_before_it_displaces() -> None:
    rig = Rig(Arrival())
    rig.running("victim", priority=5)
    rig.arrive("urgent", priority=0, ttft_slo_s=4.0)
    # It arrives with the first of these plans, and a plan is made each second.
    assert [rig.plan(seats=0).preempt for _ in range(3)] == [[], [], ["victim"]]


def test_a_request_that_has_had_its_first_token_displaces_at_once() -> None:
    rig = Rig(Arrival())
    rig.running("preempted", priority=0, ttft_slo_s=100.0)
    rig.running("victim", priority=5)
    rig.runner.scheduled({}, {}, ["preempted"])
    assert rig.plan(seats=0).preempt == ["victim"]


class Clinging(Arrival):
    """Gives nobody up, and counts how often it is asked to rank."""

    _asked: list[int] = PrivateAttr(default_factory=list)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        self._asked.append(step.index)
        return super().rank(waiting, step)

    @override
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray:
        return np.full(len(running), np.inf)


def test_displacement_in_vain_is_tried_again_after_a_change_or_some_steps() -> None:
    policy = Clinging()
    rig = Rig(policy, max_running=1)
    rig.running("victim", priority=5)
    rig.arrive("urgent", priority=0)
    policy._asked.clear()
    for _ in range(VAIN_STEPS + 1):
        rig.plan(seats=0)
    first, again = policy._asked
    assert again == first + VAIN_STEPS
    rig.plan(seats=0)
    rig.arrive("another", priority=0)
    rig.plan(seats=0)
    assert policy._asked == [first, again, again + 2]


def test_of_equals_the_one_with_least_to_compute_again_goes() -> None:
    rig = Rig(Arrival())
    rig.running("30 computed", prompt=30, priority=5)
    rig.running("20 computed", prompt=20, priority=5)
    rig.running("40 computed", prompt=40, priority=5)
    rig.arrive("urgent", priority=0)
    assert rig.plan(seats=0) == Plan(["urgent"], ["20 computed"])


def test_what_others_hold_as_well_is_not_lost() -> None:
    # Of 40 and 30 tokens in 4 and 3 blocks, one and all are a victim's own.
    rig = Rig(Arrival(), probe=Dry({"urgent": 1}, {"shares": 1, "alone": 3}))
    rig.running("alone", prompt=30, priority=5)
    rig.running("shares", prompt=40, priority=5)
    rig.arrive("urgent", priority=0)
    assert rig.plan(blocks=2).preempt == ["shares"]


def test_of_equals_who_would_miss_its_target_is_spared() -> None:
    rig = Rig(Arrival())
    # Plans are a second apart and steps half of one; each has put out one token.
    rig.running("in time", prompt=10, priority=5, tpot_slo_s=1.2)
    rig.running("no target", prompt=20, priority=5)
    rig.arrive("urgent", priority=0)
    # At 3 s: the next token was due at 1.5 + 1.2 s, and is late already.
    assert rig.plan(seats=0).preempt == ["in time"]
    rig = Rig(Arrival())
    rig.running("no target", prompt=20, priority=5)
    rig.running("in time", prompt=10, priority=5, tpot_slo_s=0.6)
    rig.arrive("urgent", priority=0)
    # At 3 s, and due at 2.5 + 0.6 s: nothing can come before 3.5 s.
    assert rig.plan(seats=0).preempt == ["no target"]


def test_short_of_blocks_whoever_was_preempted_often_goes_after_its_equals() -> None:
    rig = Rig(Arrival())
    rig.running("worn", prompt=10)
    for _ in range(MAX_EACH):
        rig.runner.scheduled({}, {}, ["worn"])
        rig.plan()
        rig.start("worn", tokens=11)
    rig.running("dear", prompt=30)
    assert rig.plan(blocks=0).preempt == ["dear"]
