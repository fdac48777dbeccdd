"""Whatever an engine does, in whatever order, the runner stays whole and tells the same twice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from batchpolicy.config import Bounds, LimitSettings, Memory, Queue
from batchpolicy.policies.benefit import Benefit
from batchpolicy.policies.edf import EarliestDeadlineFirst
from batchpolicy.policies.fcfs import FCFS
from batchpolicy.policies.priority import Priority
from batchpolicy.policies.shortest_first import ShortestFirst
from batchpolicy.policies.virtual_token_counter import VirtualTokenCounter
from batchpolicy.policy import Limits, Policy, Ranking, Step
from batchpolicy.requests import COLUMNS, FloatArray, Requests, Status
from batchpolicy.runner import Plan
from tests.support.balance import Balance
from tests.support.mini_engine import Job, MiniEngine
from tests.support.policies import Arrival, Patched, Shortest
from tests.support.twins import Twins
from tests.support.witness import Adversary

BLOCK = 4


def fails_now_and_then(rows: Requests, step: Step) -> FloatArray:
    if step.index % 3 == 0:
        raise RuntimeError("benefit")
    return np.full(len(rows), np.nan if step.index % 3 == 1 else 1.0)


def refuses(waiting: Requests, step: Step) -> Ranking:
    return Ranking(waiting.seq.astype(np.float64), refuse=(waiting.seq + step.index) % 13 == 0)


def moving_limits(step: Step) -> Limits:
    return Limits(1 + step.index % 5, 10 + step.index % 30, None if step.index % 4 else 5)


def fails_at_times(*args: Any) -> None:
    if args[-1].index % 9 == 4:
        raise RuntimeError("hook")


HOOKS = ("on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished")


POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": FCFS,
    "priority": Priority,
    "edf": EarliestDeadlineFirst,
    "shortest": ShortestFirst,
    "counters": VirtualTokenCounter,
    "benefit": Benefit,
    "corridor": lambda: Benefit(corridor_tokens=30.0),
    "adversary": lambda: Adversary(seed=29),
    "refuses": lambda: Patched.over(Arrival(), rank=refuses),
    "limits": lambda: Patched.over(Arrival(), limits=moving_limits),
    "faulty": lambda: Patched.over(Shortest(), benefit=fails_now_and_then),
    "faulty hook": lambda: Patched.over(Shortest(), **dict.fromkeys(HOOKS, fails_at_times)),
}

HOSTILE: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.sampled_from([0, 1, 2**31]),
    "priority": st.sampled_from([-(2**31), 2**31 - 1, -(2**62), 2**62]),
    "weight": st.sampled_from([1e-6, 1e6]),
    "tenant": st.text(max_size=3),
    "session": st.sampled_from(["s", "t"]),
    "ttft_slo_s": st.sampled_from([0.0, 1e-9, 1e9]),
    "tpot_slo_s": st.sampled_from([0.0, 1e-9, 1e9]),
    "deadline_after_s": st.sampled_from([0.0, 1e-9, 1e9]),
    "queue_ttl_s": st.sampled_from([0.0, 1e-9, 3.0, 1e9]),
    "predicted_output_tokens": st.sampled_from([0.0, 1.0, 1e9]),
    "arrival_s": st.sampled_from([-1e9, 0.0, 1e9]),
}


WORK = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 60),
        "outputs": st.integers(1, 20),
        "priority": st.integers(-1, 1),
        "blocked_for": st.sampled_from([0, 0, 0, 3]),
        "hit": st.sampled_from([0, 0, 7]),
    }
)


WORKS = st.lists(WORK, min_size=1, max_size=6)


class Moody(MiniEngine):
    """Takes at most ``mood`` of what is offered, and tells two runners all that happens."""

    mood: int | None = None

    @override
    def _admit(self, ids: list[str], left: int, tokens: dict[str, int]) -> list[Job]:
        return super()._admit(ids[: self.mood], left, tokens)

    @override
    def check_displacement(self, plan: Plan, dropped: list[Job], admitted: list[Job]) -> None:
        if self.mood is None:
            super().check_displacement(plan, dropped, admitted)

    @override
    def check_plan(self, plan: Plan) -> None:
        super().check_plan(plan)
        for request_id, reason in plan.refuse:
            assert math.isnan(self.waiting[request_id].first_scheduled_s)
            assert reason
        if plan.limits is not None:
            seats, tokens, chunk = plan.limits
            assert 1 <= (seats or 1) <= self.seats
            assert 1 <= (tokens or 1) <= self.facts.max_token_budget
            assert (chunk or 1) >= 1

    def forget(self, job: Job) -> None:
        """It has ended, and nobody says so."""
        job.ended = True
        self.waiting.pop(job.id, None)
        if job in self.running:
            self.running.remove(job)
        job.running = False
        self.done.append(job)


LEVELS = {"safety_milli"}
"""Among the counters, those that say where something stands."""


class RunnerMachine(RuleBasedStateMachine):
    """An engine, honest or moody, and the books that a runner keeps on it."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.counted: Counter[str] = Counter()

    @initialize(
        name=st.sampled_from(sorted(POLICIES)),
        preempt=st.sampled_from(["never", "class", "class"]),
        seats=st.integers(1, 5),
        budget=st.integers(6, 40),
        blocks=st.integers(21, 60),
        chunk=st.sampled_from([None, 8]),
        lag=st.integers(0, 1),
        watermark=st.sampled_from([0, 2]),
        bounds=st.builds(
            Bounds,
            max_bypass_s=st.sampled_from([0.0, 1.0]),
            max_wait_s=st.sampled_from([math.inf, 1.0, 3.0]),
            max_overtakes=st.sampled_from([None, 2]),
            turns=st.sampled_from(["tenant", "none"]),
        ),
        queue=st.builds(
            Queue,
            max_waiting=st.sampled_from([None, None, 0, 3]),
            ttl_s=st.sampled_from([math.inf, 5.0]),
        ),
        look_ahead=st.booleans(),
        limits=st.builds(
            LimitSettings,
            max_num_seqs=st.sampled_from([None, 2]),
            prefill_chunk=st.sampled_from([None, 6]),
        ),
        steadily=st.booleans(),
    )
    def start(
        self, name: str, bounds: Bounds, queue: Queue, look_ahead: bool, **shape: Any
    ) -> None:
        self.balances = Balance(), Balance()
        one, two = (balance.over(POLICIES[name]()) for balance in self.balances)
        limits = shape.pop("limits")
        parts = {"queue": queue, "memory": Memory(look_ahead=look_ahead), "limits": limits}
        faulty = name.startswith("faulty")
        self.engine = Moody(
            one, block_tokens=BLOCK, strict=not faulty, bounds=bounds, **shape, **parts
        )
        self.hooks_hold = name != "faulty hook"
        self.engine.runner = Twins(self.engine.runner, self.engine.runner_for(two))  # type: ignore[assignment]
        self.one = self.engine.runner.one  # type: ignore[attr-defined]

    def live(self) -> list[Job]:
        return [*self.engine.waiting.values(), *self.engine.running]

    @rule(
        works=st.lists(WORK, min_size=1, max_size=6), tenants=st.sampled_from(["a", "ab", "abc"])
    )
    def arrive(self, works: list[dict[str, Any]], tenants: str) -> None:
        for i, work in enumerate(works):
            self._come(tenant=tenants[i % len(tenants)], **work)

    @rule(work=WORK, says=st.fixed_dictionaries({}, optional=HOSTILE), many=st.integers(1, 3))
    def hostile_arrive(self, work: dict[str, Any], says: dict[str, Any], many: int) -> None:
        for _ in range(many):
            self._come(says=says, **work | {"priority": says.get("priority", 0)})

    def _come(self, *, says: dict[str, Any] | None = None, **work: Any) -> None:
        job = Job(f"r{self.made}", **work)
        job.hit = min(job.hit, job.prompt - 1)
        job.arrives, job.says = self.engine.index, says or {}
        self.made += 1
        self.engine.coming.append(job)

    @rule()
    def too_large(self) -> None:
        self._come(prompt=self.engine.blocks * BLOCK + 1, outputs=1)

    @precondition(lambda self: self.engine.unserved())
    @rule(steps=st.integers(1, 4), mood=st.sampled_from([0, 1, 2]))
    def moody_steps(self, steps: int, mood: int) -> None:
        self.engine.mood = mood
        self._take(steps)

    @rule(steps=st.integers(1, 4))
    def steps(self, steps: int) -> None:
        self.engine.mood = None
        self._take(steps)

    @precondition(lambda self: self.engine.unserved())
    @rule(steps=st.integers(5, 20))
    def many_steps(self, steps: int) -> None:
        self.engine.mood = None
        self._take(steps)

    def _take(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
            self.tables_are_the_engines()

    @rule()
    def time_passes(self) -> None:
        self.engine.now_s += 10.0

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.live()))
        self.engine._end(job, Status.ABORTED)

    @precondition(lambda self: self.engine.waiting)
    @rule(data=st.data(), steps=st.integers(1, 3))
    def block(self, data: st.DataObject, steps: int) -> None:
        job = data.draw(st.sampled_from(list(self.engine.waiting.values())))
        job.ready = False
        job.blocked_for = self.engine.index - job.arrives + steps
        self.engine.runner.ready(job.id, False)

    @precondition(lambda self: any(not job.in_flight for job in self.engine.running))
    @rule(data=st.data(), told=st.booleans())
    def preempt_outside_of_a_step(self, data: st.DataObject, told: bool) -> None:
        idle = [job for job in self.engine.running if not job.in_flight]
        job = data.draw(st.sampled_from(idle))
        if told:
            self.engine.runner.preempted([job.id])
        self.engine._preempt(job)
        self.reconcile()

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def end_untold(self, data: st.DataObject) -> None:
        self.engine.forget(data.draw(st.sampled_from(self.live())))
        self.reconcile()

    @rule()
    def reconcile(self) -> None:
        running = [job.id for job in self.engine.running]
        self.engine.runner.reconcile(list(self.engine.waiting), running)

    @rule()
    def nonsense(self) -> None:
        runner = self.engine.runner
        runner.finished("nobody", Status.FINISHED)
        runner.ready("nobody", True)
        runner.preempted(["nobody"])
        assert runner.certificate("nobody") is None
        assert runner.explain("nobody") == []
        for job in self.live():
            runner.arrived(job.id, job.facts())
        for job in self.engine.running:
            runner.ready(job.id, False)
        assert runner.keep_order(["nobody"]) == ["nobody"]

    @invariant()
    def tables_are_the_engines(self) -> None:
        engine, ledger = self.engine, self.one._ledger
        ids = ledger.table.ids
        waiting, blocked, running = (
            sorted(ids[slot] for slot in slots.array())
            for slots in (ledger.waiting, ledger.blocked, ledger.running)
        )
        assert waiting == sorted(job.id for job in engine.waiting.values() if job.ready)
        assert blocked == sorted(job.id for job in engine.waiting.values() if not job.ready)
        assert running == sorted(job.id for job in engine.running)
        assert sorted(ledger.table.slots) == sorted((*waiting, *blocked, *running))

    @invariant()
    def each_slot_has_one_owner(self) -> None:
        table, events = self.one._ledger.table, self.one._ledger.events
        owned = list(table.slots.values())
        every = [*owned, *table._free, *events._ended]
        assert sorted(every) == list(range(len(table.ids)))
        assert all(table.ids[slot] == request_id for request_id, slot in table.slots.items())

    @invariant()
    def what_is_said_to_be_at_its_default_is(self) -> None:
        ledger = self.one._ledger
        for slots in (ledger.waiting, ledger.blocked, ledger.running):
            rows = ledger.view(slots)
            for name, (_, default) in COLUMNS.items():
                if rows.at_default(name):
                    assert np.array_equal(
                        rows._column(name), np.full(len(rows), default), equal_nan=True
                    ), name

    @invariant()
    def nothing_is_lost_or_counted_back(self) -> None:
        engine = self.engine
        known = [job.id for job in (*engine.coming, *self.live(), *engine.done, *engine.refused)]
        assert sorted(known) == sorted(f"r{i}" for i in range(self.made))
        assert engine.free_blocks() >= 0
        assert len(engine.running) <= engine.seats
        counted = self.one.counters
        assert all(counted[name] >= n for name, n in self.counted.items() if name not in LEVELS)
        self.counted = counted.copy()

    @invariant()
    def everybody_can_be_explained(self) -> None:
        for job in self.live()[:3]:
            certificate = self.engine.runner.certificate(job.id)
            assert certificate is None or certificate.waited_s >= 0.0
            causes = self.engine.runner.explain(job.id)
            assert [step for step, _ in causes] == sorted(step for step, _ in causes)

    @override
    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine, balance = self.engine, self.balances[0]
        engine.mood = None
        engine.run(engine.coming, max_steps=engine.index + 3000)
        self.nothing_is_lost_or_counted_back()
        if self.hooks_hold:
            one = self.one
            nobody = one._ledger.view(one._ledger.running)
            one._steps.deliver(one._steps.make(nobody, nobody, 0, 0, 0))
            assert set(balance.finished) == balance.arrived == set(range(self.made))


def test_the_runner_stays_whole() -> None:
    run_state_machine_as_test(
        RunnerMachine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None)
    )
