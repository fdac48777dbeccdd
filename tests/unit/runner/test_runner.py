from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from typing_extensions import override

from batchpolicy.config import Bounds, LimitSettings, Queue
from batchpolicy.errors import ConfigError
from batchpolicy.policy import Limits, Policy, Ranking, Step, Tags
from batchpolicy.requests import FloatArray, IntArray, Requests, Status
from batchpolicy.runner import EngineFacts, Plan, PolicyRunner, RequestFacts
from batchpolicy.runner.planner import MAX_DISPLACED_A_REQUEST, MAX_VICTIMS_A_STEP, SPARE_ROWS
from batchpolicy.runner.runner import MAX_QUIET_STEPS
from batchpolicy.terms import Fairness
from batchpolicy.testing.data import COST
from tests.support.mini_engine import Job, MiniEngine
from tests.support.policies import Arrival, Patched, Recorder, Shortest, config_of

BLOCK = 10


class Rig:
    """A runner whose engine does exactly what each test says."""

    def __init__(
        self,
        policy: Policy,
        *,
        preempt: Any = "class",
        probe: Any = None,
        parts: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        engine: dict[str, Any] = {
            "max_running": 8,
            "max_token_budget": 100,
            "total_kv_blocks": 100,
            "kv_block_tokens": BLOCK,
            "clock": lambda: self.now_s,
        }
        self.now_s = 0.0
        self.runner = PolicyRunner(
            config_of(policy, preempt, **(parts or {})),
            EngineFacts(**(engine | facts)),
            probe,
            strict=True,
        )

    @property
    def counters(self) -> dict[str, int]:
        return self.runner.counters

    def arrive(self, *names: str, prompt: int = 10, **facts: Any) -> None:
        for name in names:
            self.runner.arrived(name, RequestFacts(prompt_tokens=prompt, max_tokens=50, **facts))

    def plan(self, blocks: int = 100, seats: int = 8, **more: Any) -> Plan:
        self.now_s += 1.0
        self.runner.begin(self.runner.tick())
        return self.runner.plan(blocks, seats, **more)

    def start(self, *names: str, tokens: int = 10) -> None:
        """They are admitted, and one step computes ``tokens`` of each."""
        self.runner.scheduled(dict.fromkeys(names, tokens), dict.fromkeys(names, 0), [])
        self.runner.produced(dict.fromkeys(names, 1), {}, 0.5)

    def decode(self, *names: str) -> None:
        self.runner.scheduled(dict.fromkeys(names, 1), {}, [])
        self.runner.produced(dict.fromkeys(names, 1), {}, 0.5)

    def running(self, *names: str, prompt: int = 10, **facts: Any) -> None:
        """They arrive and start."""
        self.arrive(*names, prompt=prompt, **facts)
        self.plan()
        self.start(*names, tokens=prompt)


def test_all_that_wait_are_offered_best_first() -> None:
    rig = Rig(Shortest())
    rig.arrive("long", prompt=30)
    rig.arrive("short", prompt=10)
    assert rig.plan() == Plan(["short", "long"])


def test_no_more_are_offered_than_seats_and_some_to_spare() -> None:
    rig = Rig(Arrival())
    rig.arrive(*(f"r{i}" for i in range(40)))
    assert rig.plan(seats=2).admit == [f"r{i}" for i in range(2 + SPARE_ROWS)]
    assert rig.plan(seats=0).admit == []


def test_a_request_that_does_not_fit_is_passed_for_a_time_and_then_holds_its_place() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_bypass_s=2.0)})
    rig.arrive("fits", prompt=20)
    rig.arrive("too large", prompt=90)
    rig.arrive("small", prompt=10)
    # A second passes with each plan; the patience counts from the first.
    assert rig.plan(blocks=5).admit == ["fits", "small", "too large"]
    assert rig.plan(blocks=5).admit == ["fits", "small", "too large"]
    assert rig.plan(blocks=5).admit == ["fits", "too large", "small"]


def test_nobody_passes_where_the_bound_is_nil() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_bypass_s=0.0)})
    rig.arrive("fits", prompt=20)
    rig.arrive("too large", prompt=90)
    rig.arrive("small", prompt=10)
    # The engine stops at what does not fit.
    assert rig.plan(blocks=5).admit == ["fits", "too large", "small"]


def test_patience_starts_anew_once_the_request_has_fitted() -> None:
    rig = Rig(Arrival(), parts={"bounds": Bounds(max_bypass_s=1.5)})
    rig.arrive("large", prompt=90)
    rig.arrive("small", prompt=10)
    assert rig.plan(blocks=5).admit == ["small", "large"]
    assert rig.plan(blocks=50).admit == ["large", "small"]
    assert rig.plan(blocks=5).admit == ["small", "large"]
    assert rig.plan(blocks=5).admit == ["small", "large"]
    assert rig.plan(blocks=5).admit == ["large", "small"]


def test_a_prompt_larger_than_all_of_the_cache_is_refused_at_once() -> None:
    rig = Rig(Arrival(), total_kv_blocks=3)
    rig.arrive("fits", prompt=3 * BLOCK)
    rig.arrive("never", prompt=3 * BLOCK + 1)
    plan = rig.plan(blocks=3)
    assert plan.refuse == [("never", "refused: its prompt needs 4 KV blocks, of 3 that there are")]
    assert plan.admit == ["fits"]
    assert rig.plan(blocks=3).refuse == []
    assert rig.counters["refused"] == 1


def test_the_time_limit_in_the_queue_fires_on_time_and_only_for_who_has_not_started() -> None:
    rig = Rig(Arrival(), parts={"queue": Queue(ttl_s=10.0)})
    rig.arrive("own", queue_ttl_s=2.0)
    rig.arrive("default")
    rig.arrive("started", queue_ttl_s=2.0)
    rig.plan()
    rig.start("started")
    assert rig.plan(seats=0).refuse == []
    plan = rig.plan(seats=0)
    assert plan.refuse == [("own", "expired: it waited longer than 2 s to start")]
    for _ in range(7):
        assert rig.plan(seats=0).refuse == []
    assert [i for i, _ in rig.plan(seats=0).refuse] == ["default"]


def test_what_the_policy_refuses_ends_and_the_rest_is_offered() -> None:
    def rank(waiting: Requests, step: Step) -> Ranking:
        return Ranking(-waiting.seq.astype(np.float64), refuse=waiting.prompt_tokens > 50)

    rig = Rig(Patched.over(Arrival(), rank=rank))
    rig.arrive("large", prompt=60)
    rig.arrive("small", prompt=10)
    plan = rig.plan()
    assert plan.refuse == [("large", "refused: by the policy")]
    assert plan.admit == ["small"]
    assert rig.plan().admit == ["small"]


def test_limits_of_the_file_stay_below_the_ceilings_and_are_told_once() -> None:
    parts = {"limits": LimitSettings(max_num_seqs=2, max_num_batched_tokens=1000)}
    rig = Rig(Arrival(), parts=parts)
    rig.arrive("a", "b", "c")
    assert rig.plan().limits == Limits(max_running=2, token_budget=100, prefill_chunk=None)
    assert rig.plan().limits is None
    rig.start("a", "b")
    # No seat is left under the limit, though the engine has six.
    assert rig.plan(seats=6) == Plan()


def test_limits_of_the_policy_are_asked_each_step_and_told_when_they_change() -> None:
    def limits(step: Step) -> Limits:
        assert (step.max_running, step.max_token_budget) == (8, 100)
        return Limits(token_budget=50 if step.now_s < 3.0 else 60, prefill_chunk=1)

    rig = Rig(Patched.over(Arrival(), limits=limits))
    # A chunk is at least a block.
    assert rig.plan().limits == Limits(8, 50, BLOCK)
    assert rig.plan().limits is None
    assert rig.plan().limits == Limits(8, 60, BLOCK)


def test_limits_that_make_no_sense_are_a_fault_and_leave_those_of_the_engine() -> None:
    for bad in (Limits(max_running=0), Limits(token_budget=2.5), None):  # type: ignore[arg-type]
        rig = Rig(Patched.over(Arrival(), limits=lambda step, bad=bad: bad))
        rig.runner._guard._strict = False
        rig.arrive("a")
        assert rig.plan() == Plan(["a"])
        assert rig.counters["policy_faults"] == 1


def test_a_blocked_request_is_not_offered_before_it_is_ready() -> None:
    rig = Rig(Arrival())
    rig.arrive("blocked", ready=False)
    rig.arrive("b")
    assert rig.plan().admit == ["b"]
    rig.runner.ready("blocked", True)
    assert rig.plan().admit == ["blocked", "b"]
    rig.runner.ready("blocked", False)
    assert rig.plan().admit == ["b"]


def test_what_is_not_admissible_is_not_offered_and_the_rest_keeps_its_order() -> None:
    def odd(rows: Requests, step: Step) -> Any:
        return rows.seq % 2 == 1

    def tier(rows: Requests, step: Step) -> Any:
        return (rows.seq < 3).astype(np.int64)

    rig = Rig(Patched.over(Arrival(), admissible=odd, tier=tier))
    rig.arrive(*(f"r{i}" for i in range(6)))
    assert rig.plan().admit == ["r3", "r5", "r1"]


def test_when_all_is_held_and_nothing_runs_the_oldest_goes() -> None:
    def none(rows: Requests, step: Step) -> Any:
        return np.zeros(len(rows), dtype=np.bool_)

    rig = Rig(Patched.over(Shortest(), admissible=none))
    rig.arrive("oldest", prompt=30)
    rig.arrive("short", prompt=10)
    assert rig.plan().admit == ["oldest"]
    assert rig.counters["forced"] == 1
    rig.start("oldest", tokens=30)
    assert rig.plan().admit == []
    assert rig.counters["forced"] == 1


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
    rig = Rig(Arrival())
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


def test_nobody_is_displaced_for_tokens_that_other_running_requests_would_take() -> None:
    rig = Rig(Arrival(), max_token_budget=20)
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
    rig = Rig(Arrival(), max_token_budget=20)
    rig.arrive("long", prompt=100, priority=5)
    rig.plan()
    rig.runner.scheduled({"long": 20}, {"long": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    rig.arrive("urgent", priority=0)
    assert rig.plan() == Plan(["urgent"], ["long"], reorder=True)


def test_a_request_is_displaced_a_few_times_only_and_a_new_one_starts_afresh() -> None:
    rig = Rig(Arrival(), max_running=1)
    rig.running("victim", priority=5)
    for i in range(MAX_DISPLACED_A_REQUEST):
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


def test_a_request_with_a_target_displaces_only_once_half_of_it_is_gone() -> None:
    rig = Rig(Arrival(), max_running=1)
    rig.running("victim", priority=5)
    rig.arrive("patient", priority=0, ttft_slo_s=5.0)
    # A second passes before each plan, and arrivals are stamped by the first after them.
    assert [rig.plan(seats=0).preempt for _ in range(3)] == [[], [], []]
    assert rig.plan(seats=0) == Plan(["patient"], ["victim"])


def test_a_request_without_a_target_displaces_at_once() -> None:
    rig = Rig(Arrival(), max_running=1)
    rig.running("victim", priority=5)
    rig.arrive("urgent", priority=0)
    assert rig.plan(seats=0) == Plan(["urgent"], ["victim"])


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


def test_running_requests_may_take_the_blocks_that_are_kept_from_admission() -> None:
    rig = Rig(Arrival())
    rig.running("a", "b")
    assert rig.plan(blocks=0, kept_blocks=2) == Plan()
    assert rig.plan(blocks=0, kept_blocks=1) == Plan([], ["b"], reorder=True)


def test_a_batch_never_displaces_all_of_itself() -> None:
    rig = Rig(Arrival())
    rig.running("alone")
    assert rig.plan(blocks=0) == Plan([], [], reorder=True)


def test_running_requests_are_put_in_order_when_tokens_are_short_in_mid_prefill() -> None:
    rig = Rig(Arrival(), max_token_budget=20)
    rig.arrive("long", prompt=100)
    assert not rig.plan().reorder
    rig.runner.scheduled({"long": 20}, {"long": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    assert rig.plan() == Plan(reorder=True)


def test_the_order_to_keep_is_decodes_then_the_reverse_of_that_of_displacement() -> None:
    def worth(rows: Requests, step: Step) -> Any:
        return (rows.prompt_tokens % 10).astype(np.float64)

    def tier(rows: Requests, step: Step) -> Any:
        return (rows.prompt_tokens == 13).astype(np.int64)

    rig = Rig(Patched.over(Arrival(), keep_benefit=worth, tier=tier))
    rig.running("second tier", prompt=13)
    rig.running("worth 1", prompt=11)
    rig.running("worth 2", prompt=12)
    rig.running("worth 2, later", prompt=22)
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


def test_a_dry_run_tells_that_a_cached_prompt_fits_after_all() -> None:
    probe = Dry({"cached": 1}, {"victim": 2})
    rig = Rig(Arrival(), probe=probe)
    rig.running("victim", priority=5)
    rig.arrive("cached", prompt=80, priority=0)
    assert rig.plan(blocks=5) == Plan(["cached"], [])
    assert probe.asked == ["cached"]


def test_who_cannot_be_freed_now_is_no_victim() -> None:
    probe = Dry({}, {"shared": 0, "in flight": -1, "older": 1})
    rig = Rig(Arrival(), probe=probe)
    rig.running("older", "shared", "in flight", priority=5)
    rig.arrive("urgent", priority=0)
    assert rig.plan(seats=0) == Plan(["urgent"], ["shared"])


def test_a_full_batch_with_nothing_to_do_asks_and_tells_the_policy_nothing() -> None:
    policy = Recorder()
    rig = Rig(policy, max_running=1)
    rig.running("a")
    rig.arrive("b")
    # What happened in a's first step is told with the plan that could admit nobody.
    rig.plan(seats=1)
    before = list(policy.calls)
    for _ in range(MAX_QUIET_STEPS - 1):
        rig.decode("a")
        assert rig.plan(seats=0) == Plan()
    assert policy.calls == before
    rig.plan(seats=0)
    assert policy.calls == [*before, ("computed", ["a"])]
    assert policy.work[-1].steps == MAX_QUIET_STEPS - 1
    rig.decode("a")
    rig.plan(seats=0)
    assert len(policy.calls) == len(before) + 1


def test_ended_requests_give_their_slots_back_in_quiet_times_too() -> None:
    rig = Rig(Arrival())
    slots = set[int]()

    def note(rows: Requests, step: Step) -> FloatArray:
        slots.update(rows.slot.tolist())
        return -rows.seq.astype(np.float64)

    rig = Rig(Patched.over(Arrival(), benefit=note))
    for i in range(1000):
        rig.arrive(f"r{i}")
        rig.plan()
        rig.runner.finished(f"r{i}", Status.ABORTED)
    assert len(slots) <= 2


def test_hooks_follow_a_life_in_its_order() -> None:
    policy = Recorder()
    rig = Rig(policy)
    rig.arrive("a", "b")
    rig.plan()
    rig.start("a", "b")
    rig.plan()
    rig.runner.scheduled({"a": 1}, {}, ["b"])
    rig.runner.produced({"a": 1}, {}, 0.5)
    rig.runner.finished("a", Status.FINISHED)
    rig.plan()
    rig.start("b", tokens=11)
    rig.runner.finished("b", Status.ABORTED)
    rig.arrive("c")
    rig.plan()
    told = [call for call in policy.calls if call[0] != "benefit"]
    assert told == [
        ("arrived", ["a", "b"]),
        ("admitted", ["a", "b"]),
        ("computed", ["a", "b"]),
        ("preempted", ["b"]),
        ("computed", ["a"]),
        ("finished", ["a"]),
        ("admitted", ["b"]),
        ("computed", ["b"]),
        ("finished", ["b"]),
        ("arrived", ["c"]),
    ]


def test_a_preempted_request_still_shows_what_it_is_about_to_lose() -> None:
    seen: list[tuple[int, int, int]] = []

    def note(rows: Requests, step: Step) -> None:
        seen.extend(zip(rows.computed_tokens, rows.kv_blocks, rows.preemptions, strict=True))

    rig = Rig(Patched.over(Arrival(), on_preempted=note))
    rig.running("a", prompt=25)
    rig.runner.scheduled({}, {}, ["a"])
    assert seen == [(25, 3, 0)]


def test_a_request_that_runs_already_or_does_not_is_not_preempted_or_admitted_again() -> None:
    policy = Recorder()
    rig = Rig(policy)
    rig.running("a")
    rig.arrive("waits")
    rig.runner.scheduled({}, {"a": 5, "ghost": 5}, ["waits", "ghost", "a", "a"])
    assert rig.counters["preempted"] == 1
    assert policy.named("preempted") == [["a"]]
    assert rig.counters["admitted"] == 2  # a again, after its preemption
    rig.runner.scheduled({}, {"a": 5}, [])
    assert rig.counters["admitted"] == 2


def test_a_step_shows_what_is_left_when_running_requests_have_theirs() -> None:
    seen: list[Step] = []

    def note(rows: Requests, step: Step) -> FloatArray:
        seen.append(step)
        return -rows.seq.astype(np.float64)

    rig = Rig(Patched.over(Arrival(), benefit=note), lag_steps=1, cost=COST)
    rig.running("a", "b")
    rig.arrive("c", "d", "e")
    rig.plan(blocks=50, seats=6)
    step = seen[-1]
    assert (step.seats, step.token_budget, step.free_kv_blocks) == (6, 98, 48)
    assert (step.max_running, step.max_token_budget, step.total_kv_blocks) == (8, 100, 100)
    assert (step.now_s, step.lag_steps, step.cost, step.step_s) == (2.0, 1, COST, 0.5)
    assert step.window == 6 + SPARE_ROWS
    assert sorted(step.running.request_id) == ["a", "b"]
    assert sorted(step.waiting.request_id) == ["c", "d", "e"]


@pytest.mark.parametrize("preempt", ["never", "class"])
def test_a_prefill_that_is_not_done_takes_its_tokens_and_blocks_before_others(
    preempt: str,
) -> None:
    seen: list[Step] = []

    def note(rows: Requests, step: Step) -> FloatArray:
        seen.append(step)
        return -rows.seq.astype(np.float64)

    rig = Rig(Patched.over(Arrival(), benefit=note), preempt=preempt)
    rig.arrive("long", prompt=160)
    rig.plan()
    rig.runner.scheduled({"long": 100}, {"long": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    rig.arrive("next")
    rig.plan(blocks=90, seats=7)
    assert (seen[-1].token_budget, seen[-1].free_kv_blocks) == (40, 84)


def test_the_engine_has_more_to_say_than_unknown_ended_and_repeated_ids() -> None:
    policy = Recorder()
    rig = Rig(policy)
    rig.arrive("a")
    rig.arrive("a", prompt=99)
    rig.plan()
    rig.runner.finished("a", Status.FINISHED)
    rig.runner.finished("a", Status.ABORTED)
    rig.runner.finished("ghost", Status.ABORTED)
    rig.runner.ready("a", True)
    rig.runner.ready("ghost", False)
    rig.runner.scheduled({"a": 5, "ghost": 5}, {"a": 0, "ghost": 0}, ["a", "ghost"])
    rig.runner.produced({"a": 1, "ghost": 1}, {"a": 1, "ghost": 1}, 0.5)
    rig.arrive("b")
    assert rig.plan() == Plan(["b"])
    assert policy.named("arrived") == [["a"], ["b"]]
    assert policy.named("finished") == [["a"]]
    assert policy.named("admitted") == policy.named("computed") == policy.named("preempted") == []


def test_reconciling_makes_the_tables_agree_with_the_engines_queues() -> None:
    policy = Recorder()
    rig = Rig(policy, max_running=4)
    rig.running("gone", "lost its seat", "runs")
    rig.arrive("waits", "has a seat", "left", prompt=10)
    rig.plan()
    rig.runner.reconcile(["waits", "lost its seat", "ghost"], ["runs", "has a seat"])
    assert rig.counters["reconciled"] == 4
    plan = rig.plan()
    assert plan.admit == ["lost its seat", "waits"]
    assert policy.named("preempted") == [["lost its seat"]]
    assert sorted(policy.named("finished")[0]) == ["gone", "left"]
    assert policy.named("admitted")[-1] == ["has a seat"]
    rig.runner.reconcile(["waits", "lost its seat"], ["runs", "has a seat"])
    assert rig.counters["reconciled"] == 4


def test_accounts_of_tenants_survive_reconciling() -> None:
    fairness = Fairness(scale_tokens=1000.0)
    hooks = {
        name: getattr(fairness, name)
        for name in ("on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished")
    }
    rig = Rig(Patched.over(Arrival(), benefit=fairness.score, **hooks))
    rig.arrive("a", tenant="a", prompt=100)
    rig.arrive("b", tenant="b", prompt=100)
    rig.plan()
    rig.runner.scheduled({"a": 100}, {"a": 0}, [])
    rig.runner.produced({"a": 1}, {}, 0.5)
    rig.runner.reconcile(["a", "b"], [])
    # a has paid for its prompt and a token, and waits: b, who paid nothing, comes first.
    assert rig.plan().admit == ["b", "a"]
    rig.runner.scheduled({"a": 101}, {"a": 0}, [])
    rig.runner.produced({"a": 1}, {}, 0.5)
    rig.arrive("a2", tenant="a", prompt=100)
    assert rig.plan().admit == ["b", "a2"]


class NeedsMore(Arrival):
    tags: ClassVar[Tags] = Tags(requires=frozenset({"pause", "prefix", "step_cost"}))


def test_a_policy_that_needs_what_the_engine_lacks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'NeedsMore' requires pause, step_cost.*has: prefix"):
        Rig(NeedsMore(), capabilities=frozenset({"prefix"}))
    with pytest.raises(ConfigError, match=r"requires pause, prefix, which.*has: step_cost"):
        Rig(NeedsMore(), cost=COST)
    Rig(NeedsMore(), cost=COST, capabilities=frozenset({"prefix", "pause"}))


class Ageless(Arrival):
    tags: ClassVar[Tags] = Tags(native="fcfs")

    @override
    def native_order(self) -> str | None:
        return "fcfs"


def test_a_policy_equal_to_the_engines_own_order_displaces_nobody_unless_told_to() -> None:
    for preempt, victims in [(None, []), ("class", ["a"])]:
        rig = Rig(Ageless(), preempt=preempt)
        rig.running("a", priority=5)
        rig.arrive("urgent", priority=0)
        assert rig.plan(seats=0).preempt == victims


@pytest.mark.parametrize("told", [True, False])
def test_a_request_near_the_size_of_the_pool_is_served_in_spite_of_a_watermark(
    told: bool,
) -> None:
    engine = MiniEngine(
        Arrival(), seats=2, budget=16, blocks=20, block_tokens=4, watermark=3, tells_watermark=told
    )
    engine.run([Job("large", prompt=60, outputs=18)], 200)
    assert engine.runner.counters["preempted"] == 0


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
