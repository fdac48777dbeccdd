"""Books on every request: events of the engine become columns, and events for the hooks."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from batchpolicy.policy import CodeKind, Policy
from batchpolicy.requests import BoolArray, IntArray, Requests, Status
from batchpolicy.runner.batch import Batch
from batchpolicy.runner.codes import Codes
from batchpolicy.runner.events import EventLog
from batchpolicy.runner.facts import EngineFacts, RequestFacts
from batchpolicy.runner.table import RequestTable, Slots, SlotSet

Forget = Callable[[IntArray, CodeKind], BoolArray]
"""Given tenants or sessions without live requests: which of them nobody remembers now."""


def _nobody(codes: IntArray, kind: CodeKind) -> BoolArray:
    return np.zeros(len(codes), dtype=np.bool_)


_MANY_PASSED = 4096
"""Admissions to remember before those are forgotten that nobody waits behind."""


class Ledger:
    """Keeps the columns true to the engine.

    Three sets of slots are disjoint: ``waiting`` can start, ``blocked`` waits for
    something outside, ``running`` holds a seat.
    """

    def __init__(self, policy: Policy, engine: EngineFacts, forget: Forget = _nobody) -> None:
        self.table = RequestTable()
        self.events = EventLog(policy, self.table, self._released)
        self.waiting = SlotSet()
        self.blocked = SlotSet()
        self.running = SlotSet()
        self._preempted: set[int] = set()
        """Slots of those that wait and have run before."""
        self.batch = Batch(self.table, self.events, self.running, engine.kv_block_tokens)
        self._block_tokens = engine.kv_block_tokens
        self._start_blocks = engine.start_blocks
        self._weights = dict(policy.tenant_weights())
        self._forget = forget
        self._tenants = Codes(lambda tenants: forget(tenants, "tenant"))
        self._sessions, self._loras = Codes(self._forget_sessions), Codes()
        self._turns: dict[int, int] = {}
        self._unstamped: list[int] = []
        self._many_passed = _MANY_PASSED
        self.changes = 0
        """Arrivals, ends, admissions and preemptions so far."""
        self.on_end: Callable[[str, int], None] = _nothing
        """Called with id and slot of each request that ends, its columns being final."""

    @property
    def now_s(self) -> float:
        """Time of the current tick."""
        return self.table.now_s

    def view(self, slots: SlotSet) -> Requests:
        """The rows of a set; valid until the next event."""
        fresh = slots is not self.running and not self._preempted
        return self.table.rows(slots.array(), never_started=fresh)

    def begin(self, now_s: float) -> None:
        """A step starts; requests that came since the last one have arrived now."""
        self.table.now_s = now_s
        if self._unstamped:
            self.table.columns["arrival_s"][self._unstamped] = now_s
            # Counted from the arrival until now.
            self.table.columns["deadline_s"][self._unstamped] += now_s
            self._unstamped.clear()

    def arrived(self, request_id: str, facts: RequestFacts) -> int:
        """The slot of a new request, whose id the table must not have."""
        self.changes += 1
        self.batch.settle()
        session = self._sessions(facts.session)
        turn = self._turns.get(session, 0) if session >= 0 else 0
        if session >= 0:
            self._turns[session] = turn + 1
        slot = self.table.add(
            request_id,
            arrival_s=self.now_s if facts.arrival_s is None else facts.arrival_s,
            priority=facts.priority,
            tenant=self._tenants(facts.tenant),
            weight=self._weights.get(facts.tenant, facts.weight),
            session=session,
            turn=turn,
            lora=self._loras(facts.lora),
            prompt_tokens=facts.prompt_tokens,
            max_tokens=facts.max_tokens,
            ttft_slo_s=facts.ttft_slo_s,
            tpot_slo_s=facts.tpot_slo_s,
            deadline_s=_deadline_s(facts),
            queue_ttl_s=facts.queue_ttl_s,
            predicted_output_tokens=facts.predicted_output_tokens,
            ready=facts.ready,
            need_kv_blocks=-(-facts.prompt_tokens // self._block_tokens) + self._start_blocks,
        )
        if facts.arrival_s is None:
            self._unstamped.append(slot)
        (self.waiting if facts.ready else self.blocked).add(slot, facts.priority)
        self.events.add("arrived", slot)
        return slot

    def ready(self, request_id: str, flag: bool) -> int | None:
        """A waiting request can start now, or cannot any more; its slot if that is news."""
        slot = self.table.slots.get(request_id)
        if slot is None or slot in self.running:
            return None
        self.changes += 1
        source, target = (self.blocked, self.waiting) if flag else (self.waiting, self.blocked)
        if not source.discard(slot):
            return None
        target.add(slot, self._priority(slot))
        self.table.columns["ready"][slot] = flag
        if np.isnan(self.table.columns["first_scheduled_s"][slot]):
            # Only what passes while it could start overtakes it.
            late = self._late(slot)
            self.table.columns["overtakes"][slot] += -late if flag else late
        return slot

    def finished(self, request_id: str, status: Status) -> None:
        """A request ended, from whatever state; unknown and ended ids are ignored."""
        if request_id not in self.table:
            return
        self.changes += 1
        slot = self.table.forget(request_id)
        if slot in self.running:
            self.batch.left(request_id, slot)
        self.table.columns["status"][slot] = int(status)
        self.on_end(request_id, slot)
        self._drop(slot)
        self.events.add("finished", slot)

    def ended_waiting(self, request_id: str, status: Status) -> bool:
        """End a request that has never started; tells whether there was such a one."""
        if not self.never_started(request_id):
            return False
        self.finished(request_id, status)
        return True

    def never_started(self, request_id: str) -> bool:
        """Whether there is such a request, and it has waited ever since it came."""
        slot = self.table.slots.get(request_id)
        return slot is not None and bool(np.isnan(self.table.columns["first_scheduled_s"][slot]))

    def preempted(self, request_id: str) -> None:
        """A running request lost its KV and waits again; its hook must have run before."""
        slot = self.table.slots.get(request_id)
        if slot is None or not self.running.discard(slot):
            return
        self.changes += 1
        self.batch.left(request_id, slot, results_count=True)
        columns = self.table.columns
        columns["computed_tokens"][slot] = 0
        columns["cached_tokens"][slot] = 0
        columns["kv_blocks"][slot] = 0
        self.table.set(request_id, preemptions=columns["preemptions"][slot] + 1)
        columns["status"][slot] = int(Status.WAITING)
        self._size_waiting(np.array([slot]))
        self.waiting.add(slot, self._priority(slot))
        self._preempted.add(slot)

    def admitted(self, found: Mapping[str, int]) -> int:
        """How many take a seat, each with so many tokens found in the KV cache.

        Unknown ids, and those that have a seat, are ignored.
        """
        self.batch.settle()
        columns = self.table.columns
        self.changes += 1
        seated = 0
        first: list[int] = []
        for request_id, hit in found.items():
            slot = self.table.slots.get(request_id)
            if slot is None or slot in self.running:
                continue
            seated += 1
            self.ready(request_id, True)
            self._drop(slot)
            self.running.add(slot, self._priority(slot))
            self.batch.joined(request_id, slot)
            columns["status"][slot] = int(Status.RUNNING)
            columns["computed_tokens"][slot] = hit
            columns["cached_tokens"][slot] = hit
            if np.isnan(columns["first_scheduled_s"][slot]):
                columns["first_scheduled_s"][slot] = self.now_s
                first.append(slot)
            self.events.add("admitted", slot)
        self._passes(first)
        return seated

    def produced(
        self, outputs: Mapping[str, int], rejected: Mapping[str, int], elapsed_s: float
    ) -> None:
        """Results of the oldest step in flight: tokens delivered, drafts rejected."""
        slots = self.batch.produced(outputs, rejected, elapsed_s, self.now_s)
        # Tokens in flight of a row that was preempted since then are computed again.
        again = self.table.columns["status"][slots] == int(Status.WAITING)
        if again.any():
            self._size_waiting(slots[again])

    def slots_of(self, ids: Iterable[str]) -> Slots:
        """Slots of known ids, in their order."""
        known = self.table.slots
        return np.array([known[i] for i in ids if i in known], dtype=np.intp)

    def _released(self, slot: int) -> None:
        """Nobody will be told of this request any more."""
        self._tenants.released(int(self.table.columns["tenant"][slot]))
        self._sessions.released(int(self.table.columns["session"][slot]))

    def _forget_sessions(self, sessions: IntArray) -> BoolArray:
        gone = self._forget(sessions, "session")
        for session in sessions[gone].tolist():
            self._turns.pop(session, None)
        return gone

    def _priority(self, slot: int) -> int:
        return int(self.table.columns["priority"][slot])

    def _size_waiting(self, slots: Slots) -> None:
        """Blocks that a waiting row takes: those of its prompt and of what it has put out."""
        columns = self.table.columns
        tokens = columns["prompt_tokens"][slots] + columns["output_tokens"][slots]
        columns["need_kv_blocks"][slots] = -(-tokens // self._block_tokens) + self._start_blocks

    def _passes(self, slots: list[int]) -> None:
        """Rows are admitted for the first time, before those that came earlier and still wait."""
        passed, seq = self.table.passed, self.table.columns["seq"]
        for slot in slots:
            self.table.columns["overtakes"][slot] += self._late(slot)
        for slot in slots:
            bisect.insort(passed, int(seq[slot]))
        if len(passed) > self._many_passed:
            waits = np.concatenate([self.waiting.array(), self.blocked.array()])
            oldest = int(seq[waits].min(initial=self.table.next_seq))
            del passed[: bisect.bisect_left(passed, oldest)]
            self._many_passed = max(_MANY_PASSED, 2 * len(passed))

    def _late(self, slot: int) -> int:
        """Later arrivals than this row that were admitted."""
        passed = self.table.passed
        return len(passed) - bisect.bisect_right(passed, int(self.table.columns["seq"][slot]))

    def _drop(self, slot: int) -> None:
        self._preempted.discard(slot)
        # In exactly one of the three.
        _ = self.running.discard(slot) or self.waiting.discard(slot) or self.blocked.discard(slot)


def _nothing(request_id: str, slot: int) -> None:
    """Nobody wants to know."""


def _deadline_s(facts: RequestFacts) -> float:
    """Absolute, or where the arrival is still to be stamped, counted from it."""
    if facts.arrival_s is None:
        return facts.deadline_after_s
    return min(facts.deadline_s, facts.arrival_s + facts.deadline_after_s)
