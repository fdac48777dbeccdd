"""Books on every request: events of the engine become columns, and events for the hooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from batchpolicy.policy import Policy
from batchpolicy.requests import IntArray, Requests, Status
from batchpolicy.runner.codes import Codes
from batchpolicy.runner.events import EventLog
from batchpolicy.runner.facts import EngineFacts, RequestFacts
from batchpolicy.runner.table import RequestTable, Slots, SlotSet


@dataclass(frozen=True, slots=True)
class _InFlight:
    """What a step computes, until its results are back."""

    slots: Slots
    seqs: IntArray
    prefill: IntArray
    next_seq: int
    """Requests from this one on came later and have no part in it."""


@dataclass(slots=True)
class _Steady:
    """All running rows decode one token a step; steps are counted here and booked in one go."""

    rows: _InFlight
    scheduled: int = 0
    produced: int = 0
    elapsed_s: float = 0.0
    at_s: float = 0.0


class Ledger:
    """Keeps the columns true to the engine.

    Three sets of slots are disjoint: ``waiting`` can start, ``blocked`` waits for
    something outside, ``running`` holds a seat.
    """

    def __init__(self, policy: Policy, engine: EngineFacts) -> None:
        self.table = RequestTable()
        self.events = EventLog(policy, self.table)
        self.waiting = SlotSet()
        self.blocked = SlotSet()
        self.running = SlotSet()
        self.mid_prefill = 0
        """Running requests whose prompt was not done after the last step."""
        self.step_s = float("nan")
        self._block_tokens = engine.kv_block_tokens
        self._weights = dict(policy.tenant_weights())
        self._tenants, self._sessions, self._loras = Codes(), Codes(), Codes()
        self._turns: dict[int, int] = {}
        self._unstamped: list[int] = []
        self._in_flight: deque[_InFlight | _Steady] = deque()
        self._steady: _Steady | None = None

    @property
    def now_s(self) -> float:
        """Time of the current tick."""
        return self.table.now_s

    def view(self, slots: SlotSet) -> Requests:
        """The rows of a set; valid until the next event."""
        return self.table.rows(slots.array())

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
        self.settle()
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
            need_kv_blocks=-(-facts.prompt_tokens // self._block_tokens),
        )
        if facts.arrival_s is None:
            self._unstamped.append(slot)
        (self.waiting if facts.ready else self.blocked).add(slot, facts.priority)
        self.events.add("arrived", slot)
        return slot

    def ready(self, request_id: str, flag: bool) -> None:
        """A waiting request can start now, or cannot any more."""
        slot = self.table.slots.get(request_id)
        if slot is None or slot in self.running:
            return
        source, target = (self.blocked, self.waiting) if flag else (self.waiting, self.blocked)
        if source.discard(slot):
            target.add(slot, self._priority(slot))
            self.table.columns["ready"][slot] = flag

    def finished(self, request_id: str, status: Status) -> None:
        """A request ended, from whatever state; unknown and ended ids are ignored."""
        if request_id not in self.table:
            return
        slot = self.table.forget(request_id)
        if slot in self.running:
            self._unsettle()
        self.table.columns["status"][slot] = int(status)
        self._drop(slot)
        self.events.add("finished", slot)

    def ended_waiting(self, request_id: str, status: Status) -> bool:
        """End a request that has never started; tells whether there was such a one."""
        slot = self.table.slots.get(request_id)
        if slot is None or not np.isnan(self.table.columns["first_scheduled_s"][slot]):
            return False
        self.finished(request_id, status)
        return True

    def preempted(self, request_id: str) -> None:
        """A running request lost its KV and waits again; its hook must have run before."""
        slot = self.table.slots.get(request_id)
        if slot is None or not self.running.discard(slot):
            return
        self._unsettle()
        columns = self.table.columns
        columns["computed_tokens"][slot] = 0
        columns["cached_tokens"][slot] = 0
        columns["kv_blocks"][slot] = 0
        columns["preemptions"][slot] += 1
        columns["status"][slot] = int(Status.WAITING)
        self._size_waiting(np.array([slot]))
        self.waiting.add(slot, self._priority(slot))

    def admitted(self, found: Mapping[str, int]) -> int:
        """How many take a seat, each with so many tokens found in the KV cache.

        Unknown ids, and those that have a seat, are ignored.
        """
        self._unsettle()
        columns = self.table.columns
        seated: list[int] = []
        for request_id, hit in found.items():
            slot = self.table.slots.get(request_id)
            if slot is None or slot in self.running:
                continue
            seated.append(slot)
            self._drop(slot)
            self.running.add(slot, self._priority(slot))
            columns["status"][slot] = int(Status.RUNNING)
            columns["ready"][slot] = True
            columns["computed_tokens"][slot] = hit
            columns["cached_tokens"][slot] = hit
            if np.isnan(columns["first_scheduled_s"][slot]):
                columns["first_scheduled_s"][slot] = self.now_s
            self.events.add("admitted", slot)
        self._count_overtakes(seated)
        return len(seated)

    def scheduled(self, tokens: Mapping[str, int]) -> None:
        """The engine computes so many tokens of each request in this step."""
        steady = self._steady
        if steady is not None:
            n = len(steady.rows.slots)
            if len(tokens) == n and sum(tokens.values()) == n:
                steady.scheduled += 1
                self._in_flight.append(steady)
                return
            self._unsettle()
        slots, counts = self._numbers(tokens)
        columns = self.table.columns
        left = self.table.rows(slots).prefill_tokens
        prefill = np.minimum(counts, left)
        mid_prefill = left > counts
        computed = columns["computed_tokens"][slots] + counts
        columns["computed_tokens"][slots] = computed
        columns["kv_blocks"][slots] = -(-computed // self._block_tokens)
        if len(slots) < len(self.running):
            # A full budget may have left nothing for the others.
            mid_prefill = self.view(self.running).prefill_tokens > 0
        self.mid_prefill = int(mid_prefill.sum())
        next_seq = self.table.next_seq
        self._in_flight.append(_InFlight(slots, columns["seq"][slots], prefill, next_seq))

    def produced(
        self, outputs: Mapping[str, int], rejected: Mapping[str, int], elapsed_s: float
    ) -> None:
        """Results of the oldest step in flight: tokens delivered, drafts rejected."""
        self.settle()
        self.step_s = elapsed_s
        columns, known = self.table.columns, self.table.slots
        at_s = self.now_s + elapsed_s
        slots, counts = self._numbers(outputs)
        done = self._in_flight.popleft() if self._in_flight else None
        if isinstance(done, _Steady):
            done = done.rows
        if done is not None:
            # A client may use the id of a request that ended in flight again.
            old = columns["seq"][slots] < done.next_seq
            slots, counts = slots[old], counts[old]
        columns["output_tokens"][slots] += counts
        # Tokens in flight of a row that was preempted since then are computed again.
        again = columns["status"][slots] == int(Status.WAITING)
        if again.any():
            self._size_waiting(slots[again])
        first = slots[np.isnan(columns["first_token_s"][slots])]
        columns["first_token_s"][first] = at_s
        columns["last_token_s"][slots] = at_s
        for request_id, n in rejected.items():
            # Who was preempted since then has nothing computed.
            if request_id in known and known[request_id] in self.running:
                columns["computed_tokens"][known[request_id]] -= n
        self._log_work(done, slots, counts, elapsed_s)
        if done is not None and self._steady is None and self._is_steady(done, slots, counts):
            self._steady = _Steady(done)

    def produced_steadily(self, results: int, elapsed_s: float) -> bool:
        """Take results of one token each without a look at them, if that is what they are.

        They are when the oldest step in flight was like the one before it, has as many
        results as rows, and nobody came, went or was preempted in between.
        """
        steady = self._steady
        if steady is None or not self._in_flight or self._in_flight[0] is not steady:
            return False
        if results != len(steady.rows.slots):
            return False
        self._in_flight.popleft()
        steady.produced += 1
        steady.elapsed_s += elapsed_s
        steady.at_s = self.now_s + elapsed_s
        self.step_s = elapsed_s
        return True

    def settle(self) -> None:
        """Book the steps that were only counted."""
        steady = self._steady
        if steady is None or not (steady.scheduled or steady.produced):
            return
        columns, slots = self.table.columns, steady.rows.slots
        computed = columns["computed_tokens"][slots] + steady.scheduled
        columns["computed_tokens"][slots] = computed
        columns["kv_blocks"][slots] = -(-computed // self._block_tokens)
        if steady.produced:
            columns["output_tokens"][slots] += steady.produced
            columns["last_token_s"][slots] = steady.at_s
            self.events.computed(
                slots,
                np.zeros(len(slots), dtype=np.int64),
                np.full(len(slots), steady.produced),
                steady.elapsed_s,
                steps=steady.produced,
            )
        steady.scheduled = steady.produced = 0
        steady.elapsed_s = 0.0

    def slots_of(self, ids: Iterable[str]) -> Slots:
        """Slots of known ids, in their order."""
        known = self.table.slots
        return np.array([known[i] for i in ids if i in known], dtype=np.intp)

    def _unsettle(self) -> None:
        """Rows join or leave: from here on, steps are booked one by one again."""
        self.settle()
        self._steady = None

    def _is_steady(self, done: _InFlight, slots: Slots, output: IntArray) -> bool:
        """Every running row has decoded one token, and none is mid-prefill."""
        return (
            len(slots) == len(done.slots) == len(self.running)
            and bool((slots == done.slots).all())
            and bool((output == 1).all())
            and not done.prefill.any()
            and bool((self.table.columns["status"][slots] == int(Status.RUNNING)).all())
        )

    def _priority(self, slot: int) -> int:
        return int(self.table.columns["priority"][slot])

    def _log_work(
        self, done: _InFlight | None, slots: Slots, output: IntArray, elapsed_s: float
    ) -> None:
        if done is None:
            self.events.computed(slots, np.zeros_like(output), output, elapsed_s)
            return
        # Who ended in flight is not reported, even if its slot has a new owner.
        status, seq = self.table.columns["status"], self.table.columns["seq"]
        live = (seq[done.slots] == done.seqs) & (status[done.slots] <= int(Status.RUNNING))
        worked, prefill = done.slots[live], done.prefill[live]
        if len(worked) == len(slots) and bool((worked == slots).all()):
            self.events.computed(worked, prefill, output, elapsed_s)
            return
        delivered = dict(zip(slots.tolist(), output.tolist(), strict=True))
        both = [delivered.pop(slot, 0) for slot in worked.tolist()]
        # Tokens in flight of a row that was preempted since then still count.
        extra = np.array(list(delivered), dtype=np.intp)
        self.events.computed(
            np.concatenate([worked, extra]),
            np.concatenate([prefill, np.zeros(len(extra), dtype=np.int64)]),
            np.array(both + list(delivered.values()), dtype=np.int64),
            elapsed_s,
        )

    def _numbers(self, tokens: Mapping[str, int]) -> tuple[Slots, IntArray]:
        """Slots and positive token counts of the ids that are known."""
        known = self.table.slots
        try:
            slots = np.fromiter(map(known.__getitem__, tokens), np.intp, len(tokens))
            counts = np.fromiter(tokens.values(), np.int64, len(tokens))
        except KeyError:
            # The engine may still report what has ended here.
            return self._numbers({i: n for i, n in tokens.items() if i in known})
        if len(counts) and not counts.min():
            slots, counts = slots[counts > 0], counts[counts > 0]
        return slots, counts

    def _size_waiting(self, slots: Slots) -> None:
        """Blocks that a waiting row takes: those of its prompt and of what it has put out."""
        columns = self.table.columns
        tokens = columns["prompt_tokens"][slots] + columns["output_tokens"][slots]
        columns["need_kv_blocks"][slots] = -(-tokens // self._block_tokens)

    def _count_overtakes(self, slots: list[int]) -> None:
        columns = self.table.columns
        first = [s for s in slots if columns["preemptions"][s] == 0]
        if not first or not len(self.waiting):
            return
        seqs = np.sort(columns["seq"][first])
        waiting = self.waiting.array()
        later = len(seqs) - np.searchsorted(seqs, columns["seq"][waiting], side="right")
        columns["overtakes"][waiting] += later

    def _drop(self, slot: int) -> None:
        # In exactly one of the three.
        _ = self.running.discard(slot) or self.waiting.discard(slot) or self.blocked.discard(slot)


def _deadline_s(facts: RequestFacts) -> float:
    """Absolute, or where the arrival is still to be stamped, counted from it."""
    if facts.arrival_s is None:
        return facts.deadline_after_s
    return min(facts.deadline_s, facts.arrival_s + facts.deadline_after_s)
