"""What running requests compute: steps of the engine become columns, and work for hooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from batchpolicy.requests import BoolArray, IntArray, Status
from batchpolicy.runner.events import EventLog
from batchpolicy.runner.table import RequestTable, Slots, SlotSet

_UNKNOWN = -1


@dataclass(slots=True, eq=False)
class _Step:
    """What one step computes, until its results are back; arrays of shape ``(n,)``."""

    slots: Slots
    seqs: IntArray
    prefill: IntArray
    """Prompt tokens; what else a row computes is a decode."""
    outputs: IntArray
    """Tokens that will come out, where that is known before."""
    next_seq: int
    """Requests from this one on came later and have no part in it."""
    results: int
    """How many rows will have one token each as their result; -1 if they may have others."""
    whole: bool = True
    """Nobody has ended in flight."""


class Batch:
    """Books on the rows that hold a seat.

    Rows past their prompt get one token in each step, and such steps are only
    counted, to be booked in one go by ``settle``. Prompts are booked as they are
    computed. What a step or its results cannot be told so is booked row by row.
    """

    def __init__(
        self, table: RequestTable, events: EventLog, running: SlotSet, block_tokens: int
    ) -> None:
        self._table = table
        self._events = events
        self._running = running
        self._block_tokens = block_tokens
        self.step_s = float("nan")
        self._measured: _Step | None = None
        """The step that took so long, until somebody asks."""
        self._prompts: dict[str, int] = {}
        """Slots of running requests whose prompt was not done after the last step."""
        none = np.empty(0, dtype=np.intp)
        # What all steps of decodes share; never written to.
        self._zeros = self._ones = np.empty(0, dtype=np.int64)
        self._decoding = self._only_decodes(none, none)
        """All other rows, and the step that they make when nobody else has a part."""
        self._scheduled = 0
        """Steps of ``_decoding`` whose computed tokens are not booked."""
        self._in_flight: deque[_Step] = deque()
        self._produced = 0
        """Results of ``_producing`` that are not booked."""
        self._producing = self._decoding
        self._elapsed_s = self._at_s = 0.0

    @property
    def mid_prefill(self) -> int:
        """Rows whose prompt was not done after the last step."""
        return len(self._prompts)

    @property
    def computes(self) -> bool:
        """Whether the oldest step in flight computes anything."""
        return bool(self._in_flight) and len(self._in_flight[0].slots) > 0

    @property
    def decoding(self) -> int:
        """Rows past their prompt."""
        return len(self._decoding.slots)

    def is_midway(self, request_id: str) -> bool:
        """A running request whose prompt is not done."""
        return request_id in self._prompts

    def joined(self, request_id: str, slot: int) -> None:
        """A request has taken a seat."""
        self._prompts[request_id] = slot

    def left(self, request_id: str, slot: int, *, results_count: bool = False) -> None:
        """A request gives up its seat; ``results_count`` if tokens in flight are still its own."""
        self.settle()
        if self._prompts.pop(request_id, None) is None:
            stay = self._decoding.slots != slot
            self._decoding = self._only_decodes(
                self._decoding.slots[stay], self._decoding.seqs[stay]
            )
        # The same step may be in flight twice.
        for step in dict.fromkeys(self._in_flight):
            here = step.slots == slot
            if here.any():
                step.whole = False
                if results_count or step.results == _UNKNOWN:
                    step.results = _UNKNOWN
                else:
                    step.results -= int(step.outputs[here].sum())

    def scheduled(self, tokens: Mapping[str, int]) -> None:
        """The engine computes so many tokens of each request in this step."""
        chunks = [(i, slot, tokens[i]) for i, slot in self._prompts.items() if tokens.get(i)]
        decodes = len(self._decoding.slots)
        if chunks and len(tokens) == len(chunks):
            self._in_flight.append(self._with_chunks(chunks, alone=True))
            return
        told = decodes + sum(count for _, _, count in chunks)
        if len(tokens) != decodes + len(chunks) or sum(tokens.values()) != told:
            self._schedule_each(tokens)
            return
        self._scheduled += 1
        self._in_flight.append(self._with_chunks(chunks) if chunks else self._decoding)

    def scheduled_steadily(self, decodes: int) -> bool:
        """The engine computes a token of each row past its prompt and nothing else, if so many."""
        if decodes != len(self._decoding.slots):
            return False
        self._scheduled += 1
        self._in_flight.append(self._decoding)
        return True

    def produced_steadily(self, results: int, elapsed_s: float, now_s: float) -> bool:
        """Take results of one token each without a look at them, if that is what they are."""
        step = self._in_flight[0] if self._in_flight else None
        if step is None or step.results != results:
            return False
        self._in_flight.popleft()
        self.step_s, self._measured = elapsed_s, step
        if step is not self._producing:
            self.settle()
            self._producing = step
        self._produced += 1
        self._elapsed_s += elapsed_s
        self._at_s = now_s + elapsed_s
        return True

    def produced(
        self,
        outputs: Mapping[str, int],
        rejected: Mapping[str, int],
        elapsed_s: float,
        now_s: float,
    ) -> IntArray:
        """Results of the oldest step in flight; slots of those that got tokens."""
        self.settle()
        self.step_s = elapsed_s
        columns, known = self._table.columns, self._table.slots
        at_s = now_s + elapsed_s
        slots, counts = self._numbers(outputs)
        step = self._measured = self._in_flight.popleft() if self._in_flight else None
        if step is not None:
            # A client may use the id of a request that ended in flight again.
            old = columns["seq"][slots] < step.next_seq
            slots, counts = slots[old], counts[old]
        self._deliver(slots, counts, at_s)
        for request_id, n in rejected.items():
            # Who was preempted since then has nothing computed.
            if request_id in known and known[request_id] in self._running:
                columns["computed_tokens"][known[request_id]] -= n
        self._log(step, slots, counts, elapsed_s)
        return slots

    def take_measured(self) -> tuple[int, int] | None:
        """Prompt tokens and decodes of the step that ``step_s`` is of; None if it was told."""
        step, self._measured = self._measured, None
        if step is None:
            return None
        return int(step.prefill.sum()), int(np.count_nonzero(step.prefill == 0))

    def settle(self) -> None:
        """Book the steps and results that were only counted."""
        if self._scheduled:
            self._compute(self._decoding.slots, self._scheduled)
            self._scheduled = 0
        if not self._produced:
            return
        step, n = self._producing, self._produced
        slots, prefill, outputs = step.slots, step.prefill, step.outputs
        if not step.whole:
            live = self._live(step)
            slots, prefill, outputs = slots[live], prefill[live], outputs[live]
        self._deliver(slots, n * outputs, self._at_s)
        self._events.computed(slots, prefill, n * outputs, self._elapsed_s, steps=n)
        self._produced = 0
        self._elapsed_s = 0.0

    def _with_chunks(self, chunks: list[tuple[str, int, int]], *, alone: bool = False) -> _Step:
        """The step of these parts of prompts, with all decodes or ``alone``.

        Of each part: id, slot and tokens.
        """
        self._compute(self._decoding.slots, self._scheduled)
        self._scheduled = 0
        prefill: list[int] = []
        ends: list[int] = []
        for request_id, slot, count in chunks:
            left = self._advance(slot, count)
            prefill.append(min(count, left))
            ends.append(int(left <= count))
            if left <= count:
                del self._prompts[request_id]
        before = self._decoding
        joined = np.array([slot for _, slot, _ in chunks])
        slots = np.concatenate([before.slots, joined])
        seqs = np.concatenate([before.seqs, self._table.columns["seq"][joined]])
        outputs = np.concatenate([before.outputs, ends])
        first = len(before.slots) if alone else 0
        step = _Step(
            slots[first:],
            seqs[first:],
            np.concatenate([before.prefill, prefill])[first:],
            outputs[first:],
            self._table.next_seq,
            len(before.slots) - first + sum(ends),
        )
        if not all(ends):
            slots, seqs = slots[outputs > 0], seqs[outputs > 0]
        self._decoding = self._only_decodes(slots, seqs)
        return step

    def _advance(self, slot: int, count: int) -> int:
        """Compute so many tokens of one row; what was left of its prompt before."""
        columns = self._table.columns
        output = int(columns["output_tokens"][slot])
        computed = int(columns["computed_tokens"][slot])
        known = max(computed, int(columns["cached_tokens"][slot]))
        left = int(columns["prompt_tokens"][slot]) + output - known
        columns["computed_tokens"][slot] = computed + count
        columns["kv_blocks"][slot] = -(-(computed + count) // self._block_tokens)
        # As ``Requests.prefill_tokens`` has it.
        return 0 if output and left <= 1 else max(left, 0)

    def _schedule_each(self, tokens: Mapping[str, int]) -> None:
        """Book a step whose tokens are of any number."""
        self.settle()
        slots, counts = self._numbers(tokens)
        seqs = self._table.columns["seq"]
        prefill = np.minimum(counts, self._table.rows(slots).prefill_tokens)
        self._compute(slots, counts)
        self._in_flight.append(
            _Step(slots, seqs[slots], prefill, prefill, self._table.next_seq, _UNKNOWN)
        )
        running = self._running.array()
        ids, partial = self._table.ids, self._table.rows(running).prefill_tokens > 0
        self._prompts = {ids[slot]: slot for slot in running[partial].tolist()}
        decoding = running[~partial]
        self._decoding = self._only_decodes(decoding, seqs[decoding])

    def _only_decodes(self, slots: Slots, seqs: IntArray) -> _Step:
        n = len(slots)
        if n > len(self._ones):
            self._zeros, self._ones = np.zeros(2 * n, np.int64), np.ones(2 * n, np.int64)
        return _Step(slots, seqs, self._zeros[:n], self._ones[:n], self._table.next_seq, n)

    def _compute(self, slots: Slots, tokens: IntArray | int) -> None:
        columns = self._table.columns
        computed = columns["computed_tokens"][slots] + tokens
        columns["computed_tokens"][slots] = computed
        columns["kv_blocks"][slots] = -(-computed // self._block_tokens)

    def _deliver(self, slots: Slots, counts: IntArray, at_s: float) -> None:
        columns = self._table.columns
        if len(counts) and not counts.min():
            slots, counts = slots[counts > 0], counts[counts > 0]
        columns["output_tokens"][slots] += counts
        first = slots[np.isnan(columns["first_token_s"][slots])]
        columns["first_token_s"][first] = at_s
        columns["last_token_s"][slots] = at_s

    def _live(self, step: _Step) -> BoolArray:
        """Rows of a step that have not ended; a slot may have a new owner."""
        status, seq = self._table.columns["status"], self._table.columns["seq"]
        same: BoolArray = seq[step.slots] == step.seqs
        return same & (status[step.slots] <= int(Status.RUNNING))

    def _log(self, step: _Step | None, slots: Slots, outputs: IntArray, elapsed_s: float) -> None:
        if step is None:
            self._events.computed(slots, np.zeros_like(outputs), outputs, elapsed_s)
            return
        # Who ended in flight is not reported.
        live = self._live(step)
        worked, prefill = step.slots[live], step.prefill[live]
        if len(worked) == len(slots) and bool((worked == slots).all()):
            self._events.computed(worked, prefill, outputs, elapsed_s)
            return
        delivered = dict(zip(slots.tolist(), outputs.tolist(), strict=True))
        both = [delivered.pop(slot, 0) for slot in worked.tolist()]
        # Tokens in flight of a row that was preempted since then still count.
        extra = np.array(list(delivered), dtype=np.intp)
        self._events.computed(
            np.concatenate([worked, extra]),
            np.concatenate([prefill, np.zeros(len(extra), dtype=np.int64)]),
            np.array(both + list(delivered.values()), dtype=np.int64),
            elapsed_s,
        )

    def _numbers(self, tokens: Mapping[str, int]) -> tuple[Slots, IntArray]:
        """Slots and positive token counts of the ids that are known."""
        known = self._table.slots
        try:
            slots = np.fromiter(map(known.__getitem__, tokens), np.intp, len(tokens))
            counts = np.fromiter(tokens.values(), np.int64, len(tokens))
        except KeyError:
            # The engine may still report what has ended here.
            return self._numbers({i: n for i, n in tokens.items() if i in known})
        if len(counts) and not counts.min():
            slots, counts = slots[counts > 0], counts[counts > 0]
        return slots, counts
