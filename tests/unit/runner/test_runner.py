from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from batchpolicy.errors import ConfigError
from batchpolicy.policy import Step, Tags
from batchpolicy.requests import FloatArray, IntArray, Requests, Status
from batchpolicy.runner import Plan
from batchpolicy.runner.step_maker import MAX_QUIET_STEPS, SPARE_ROWS
from batchpolicy.terms import Fairness
from batchpolicy.testing.data import COST
from tests.support.mini_engine import Job, MiniEngine
from tests.support.policies import Arrival, Patched, Recorder, Shortest
from tests.support.rig import Rig


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


class NeedsMore(Arrival):
    tags: ClassVar[Tags] = Tags(requires=frozenset({"pause", "prefix", "step_cost"}))


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


def test_running_requests_may_take_the_blocks_that_are_kept_from_admission() -> None:
    rig = Rig(Arrival())
    rig.running("a", "b")
    assert rig.plan(blocks=0, kept_blocks=2) == Plan()
    assert rig.plan(blocks=0, kept_blocks=1) == Plan([], ["b"], reorder=True)


def test_running_requests_are_put_in_order_when_tokens_are_short_in_mid_prefill() -> None:
    rig = Rig(Arrival(), max_token_budget=20)
    rig.arrive("long", prompt=100)
    assert not rig.plan().reorder
    rig.runner.scheduled({"long": 20}, {"long": 0}, [])
    rig.runner.produced({}, {}, 0.5)
    assert rig.plan() == Plan(reorder=True)


def test_a_dry_run_tells_that_a_cached_prompt_fits_after_all() -> None:
    probe = Dry({"cached": 1}, {"victim": 2})
    rig = Rig(Arrival(), probe=probe)
    rig.running("victim", priority=5)
    rig.arrive("cached", prompt=80, priority=0)
    assert rig.plan(blocks=5) == Plan(["cached"], [])
    assert probe.asked == ["cached"]


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


def test_a_policy_that_needs_what_the_engine_lacks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'NeedsMore' requires pause, step_cost.*has: prefix"):
        Rig(NeedsMore(), capabilities=frozenset({"prefix"}))
    with pytest.raises(ConfigError, match=r"requires pause, prefix, which.*has: step_cost"):
        Rig(NeedsMore(), cost=COST)
    Rig(NeedsMore(), cost=COST, capabilities=frozenset({"prefix", "pause"}))


@pytest.mark.parametrize("told", [True, False])
def test_a_request_near_the_size_of_the_pool_is_served_in_spite_of_a_watermark(
    told: bool,
) -> None:
    engine = MiniEngine(
        Arrival(), seats=2, budget=16, blocks=20, block_tokens=4, watermark=3, tells_watermark=told
    )
    engine.run([Job("large", prompt=60, outputs=18)], 200)
    assert engine.runner.counters["preempted"] == 0


def test_rows_whose_adapter_has_no_place_take_none_in_the_plan() -> None:
    rig = Rig(Arrival(), max_loras=1)
    rig.running("a1", lora="a")
    rig.arrive(*(f"b{i}" for i in range(40)), lora="b")
    rig.arrive("a2", lora="a")
    rig.arrive("none")
    assert rig.plan() == Plan(["a2", "none"])


def test_any_adapter_may_start_while_there_is_a_place_for_one_more() -> None:
    rig = Rig(Arrival(), max_loras=2)
    rig.running("a1", lora="a")
    rig.arrive("b", lora="b")
    rig.arrive("c", lora="c")
    # Which of them fits is for the engine to say.
    assert rig.plan() == Plan(["b", "c"])


def test_nobody_is_displaced_for_a_request_whose_adapter_has_no_place() -> None:
    rig = Rig(Arrival(), max_loras=1, max_running=2)
    rig.running("a1", priority=9, lora="a")
    rig.running("a2", priority=9, lora="a")
    rig.arrive("b", priority=0, lora="b")
    assert rig.plan(seats=0) == Plan()
