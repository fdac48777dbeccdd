"""Why a request did not start: one named cause for each plan it waited through.

A plan notes what it has at hand anyway; causes are worked out when somebody asks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchpolicy.policy import Step
from batchpolicy.requests import BoolArray, IntArray, Requests
from batchpolicy.state import StateArray

MAX_NOTES = 64
"""Plans that are remembered; a run of plans that look at nobody counts as one."""
MAX_ENDED = 256
"""Requests that have ended and can still be explained, the latest."""

SEATS = "seats"
TOKENS = "tokens"
KV = "kv"
KV_LATER = "kv later"
HELD = "held by policy"
ADAPTER = "adapter"
NOT_READY = "not ready"
NOT_TAKEN = "not taken by the engine"

_NO_ROWS: IntArray = np.empty(0, dtype=np.int64)

Mask = BoolArray | None
"""Rows marked in an array of shape ``(n,)``; None for all."""


@dataclass(slots=True)
class _Closed:
    """Rows of the whole queue that stayed out of a plan."""

    seq: IntArray
    by_policy: npt.NDArray[np.uint8] | None
    by_adapter: npt.NDArray[np.uint8] | None
    """As bits, as masks are large and rarely looked at."""

    def cause(self, seq: int) -> str | None:
        found = np.flatnonzero(self.seq == seq)
        if not len(found):
            return None
        place = int(found[0])
        if self.by_adapter is not None and _bit(self.by_adapter, place):
            return ADAPTER
        return HELD if self.by_policy is not None and _bit(self.by_policy, place) else None


@dataclass(slots=True)
class _Note:
    """One plan, or a run of plans that looked at nobody for the same reason."""

    step: int
    last: int
    """The last step of the run."""
    seqs: IntArray
    """Rows that the plan was about, in order."""
    nobody: str = ""
    """Why nobody was looked at."""
    late: Sequence[bool] = ()
    """Which of them were overdue, and below who they were; empty for none."""
    ids: Sequence[str] = ()
    closed: _Closed | None = None
    seats: int = 0
    tokens: int = 0
    short: dict[int, str] | None = None
    """Places of rows for whose KV there was no room, and which."""
    stop: int | None = None
    """The place that nobody behind it may pass."""
    admitted: int = 0
    """How many of them the engine started."""
    spent: int = 0
    """Tokens that it computed of those."""

    def cause(self, seq: int) -> str:
        """Why a row that waited did not start in this plan."""
        if self.nobody:
            return self.nobody
        places = np.flatnonzero(self.seqs == seq)
        if not len(places):
            closed = None if self.closed is None else self.closed.cause(seq)
            return closed or self._rank(len(self.seqs))
        place = int(places[0])
        if self.short and place in self.short:
            return self.short[place]
        if self.stop is not None and place > self.stop:
            return self._bound(self.stop) if self._is_late(self.stop) else self._rank(place)
        if self.seats <= 0 or self.tokens <= 0:
            return SEATS if self.seats <= 0 else TOKENS
        if self.admitted >= self.seats:
            overdue = [i for i, late in enumerate(self.late[:place]) if late]
            # But for the bound, it would have had a seat.
            if overdue and not self.late[place] and place - len(overdue) < self.seats:
                return self._bound(overdue[-1])
            return self._rank(place)
        return TOKENS if self.spent >= self.tokens else NOT_TAKEN

    def _is_late(self, place: int) -> bool:
        return bool(self.late) and self.late[place]

    def _bound(self, place: int) -> str:
        return f"bound: {self.ids[place]} is overdue"

    def _rank(self, before: int) -> str:
        return f"rank: {before} before it"


class _Wait(NamedTuple):
    """The last wait of one request, in steps."""

    seq: int
    first: float
    ready: float
    """The first in which it could start; inf if it cannot."""
    until: float
    """That in which it started, or before which it ended."""


class Notes:
    """Remembers the last plans, and which of them each request waited through."""

    def __init__(self) -> None:
        self._notes: deque[_Note] = deque(maxlen=MAX_NOTES)
        self.step = -1
        """The last step that looked at the queue."""
        self.placed: BoolArray | None = None
        """Waiting rows of the plan being made whose adapter has a place; None for all."""
        # Of the last wait of each slot.
        self._first, self._ready = StateArray(), StateArray()
        self._until = StateArray(math.inf)
        self._ended: dict[str, _Wait] = {}

    def waits(self, slot: int, step: int, *, ready: bool = True) -> None:
        """A request waits from this step on."""
        self._first.put(slot, step)
        self._ready.put(slot, step if ready else math.inf)
        self._until.put(slot, math.inf)

    def ready(self, slot: int, step: int, flag: bool) -> None:
        """A request can start from this step on, or cannot any more."""
        self._ready.put(slot, step if flag else math.inf)

    def ended(self, request_id: str, slot: int, seq: int, step: int) -> None:
        """A request has ended before this step."""
        wait = self._wait(slot, seq)
        self._ended.pop(request_id, None)
        self._ended[request_id] = wait._replace(until=min(wait.until, step))
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def nobody(self, step: int, why: str) -> None:
        """A plan did not look at the queue."""
        last = self._notes[-1] if self._notes else None
        if last is not None and last.nobody == why:
            last.last = step
        else:
            self._notes.append(_Note(step, step, _NO_ROWS, nobody=why))

    def drawn(
        self, step: Step, waiting: Requests, best: Requests, late: list[bool], held: Mask
    ) -> None:
        """A plan is about the rows ``best`` in order, of which ``late`` are overdue.

        ``late`` is empty for none; ``held`` marks the rows of ``waiting`` that the policy
        keeps from starting although they rank before others of the plan, None for nobody.
        """
        self.step = step.index
        note = _Note(step.index, step.index, best.seq, late=late)
        note.seats, note.tokens = step.seats, step.token_budget
        if late:
            note.ids = best.request_id
        by_policy = _packed(held)
        by_adapter = None if self.placed is None else _packed(~self.placed)
        if by_policy is not None or by_adapter is not None:
            note.closed = _Closed(waiting.seq, by_policy, by_adapter)
        self.placed = None
        self._notes.append(note)

    def short(self, place: int, cause: str, *, stops: bool) -> None:
        """There is no room for the KV of a row; ``stops`` if nobody behind it may pass it."""
        note = self._notes[-1]
        note.short = note.short or {}
        note.short[place] = cause
        if stops and note.stop is None:
            note.stop = place

    def admitted(self, slots: list[int], step: int, tokens: int) -> None:
        """The engine starts these, and computes so many tokens of them."""
        for slot in slots:
            self._until.put(slot, step)
        if self.step == step:
            note = self._notes[-1]
            note.admitted, note.spent = len(slots), tokens

    def of(self, slot: int, seq: int) -> list[tuple[int, str]]:
        """Steps from which on a cause held the owner of a slot back, and those causes."""
        return self._explain(self._wait(slot, seq))

    def of_ended(self, request_id: str) -> list[tuple[int, str]]:
        """The same for a request that has ended; empty if it is not among the last."""
        wait = self._ended.get(request_id)
        return [] if wait is None else self._explain(wait)

    def _wait(self, slot: int, seq: int) -> _Wait:
        return _Wait(seq, self._first.at(slot), self._ready.at(slot), self._until.at(slot))

    def _explain(self, wait: _Wait) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []

        def add(step: float, cause: str) -> None:
            if not found or found[-1][1] != cause:
                found.append((int(step), cause))

        for note in self._notes:
            first = max(note.step, wait.first)
            end = min(note.last + 1, wait.until)
            if first < min(end, wait.ready):
                add(first, NOT_READY)
            if max(first, wait.ready) < end:
                add(max(first, wait.ready), note.cause(wait.seq))
        return found


def _packed(mask: Mask) -> npt.NDArray[np.uint8] | None:
    """The rows of a mask as bits; None if there are none."""
    return None if mask is None or not mask.any() else np.packbits(mask)


def _bit(bits: npt.NDArray[np.uint8], place: int) -> bool:
    return bool(bits[place >> 3] >> (7 - (place & 7)) & 1)
