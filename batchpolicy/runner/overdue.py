"""Requests past a bound on waiting: they go before all others, tenants in turn."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

import numpy as np

from batchpolicy.config import Bounds
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.runner.order import Rows
from batchpolicy.state import StateArray

Best = Callable[[BoolArray, int], Rows]
"""The so many best rows among those of a mask, best first."""


class Overdue:
    """Knows who has waited too long, and puts them in front.

    A row is overdue once it waits longer than ``max_wait_s``, or was overtaken by
    ``max_overtakes`` later arrivals. With ``turns: none`` the oldest go before
    everybody, so that no later arrival overtakes them any more. With ``turns:
    tenant`` that holds within each tenant: one row a tenant counts at a time, tenants
    take turns among themselves, and all of them with the rows of other tenants.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._max_wait_s = bounds.max_wait_s
        self._max_overtakes = bounds.max_overtakes
        self._by_tenant = bounds.turns == "tenant"
        self.bounded = self._max_wait_s < math.inf or self._max_overtakes is not None
        self._since_s = StateArray(np.nan)
        """When each slot that was preempted began to wait again."""
        self._turn = StateArray()
        """Of each tenant, the number of its last turn."""
        self._turns = 0.0
        self._others_turn = False
        self._chosen: dict[int, int] = {}
        """Overdue rows of the last plan: slot and tenant."""

    def arrived(self, slot: int) -> None:
        """A slot has a new owner."""
        self._since_s.put(slot, math.nan)

    def preempted(self, slot: int, now_s: float) -> None:
        """A row waits again."""
        self._since_s.put(slot, now_s)

    def admitted(self, slot: int) -> bool:
        """A row has taken a seat; tells whether it was overdue."""
        tenant = self._chosen.pop(slot, None)
        self._others_turn = tenant is not None
        if tenant is not None:
            self._turns += 1.0
            self._turn.put(tenant, self._turns)
        return tenant is not None

    def is_chosen(self, slot: int) -> bool:
        """Whether the last plan holds this slot as overdue, so that nobody passes it."""
        return slot in self._chosen

    def rows(self, waiting: Requests, now_s: float) -> BoolArray:
        """Which rows are overdue; asked once in each plan that orders the queue."""
        if not self.bounded:
            return np.zeros(len(waiting), dtype=np.bool_)
        # A slot of the plan before may have a new owner.
        self._chosen = {}
        since_s = self._waits_since_s(waiting)
        late: BoolArray = since_s + self._max_wait_s <= now_s
        if self._max_overtakes is not None:
            late |= waiting.overtakes >= self._max_overtakes
        return late

    def next_s(self, waiting: Requests) -> float:
        """When the first of the rows will have waited too long, if nothing happens before."""
        if self._max_wait_s == math.inf:
            return math.inf
        return float(self._waits_since_s(waiting).min(initial=math.inf)) + self._max_wait_s

    def _waits_since_s(self, waiting: Requests) -> FloatArray:
        since_s = self._since_s[waiting.slot]
        return np.where(np.isnan(since_s), waiting.arrival_s, since_s)

    def order(self, waiting: Requests, late: BoolArray, best: Best, window: int) -> Rows:
        """The ``window`` rows to plan, ``late`` ones first or in turn with the others."""
        if self._by_tenant:
            found = list(self._in_turn(waiting, late, best, window))
        else:
            found = _oldest(waiting, late)[:window].tolist()
            found += best(~late, window - len(found)).tolist()
        slots, tenants = waiting.slot, waiting.tenant
        self._chosen = {int(slots[row]): int(tenants[row]) for row in found if late[row]}
        return np.array(found, dtype=np.intp)

    def _in_turn(
        self, waiting: Requests, late: BoolArray, best: Best, window: int
    ) -> Iterator[int]:
        tenants = waiting.tenant
        queues = _by_tenant(_oldest(waiting, late), tenants, window)
        turns = [
            (self._turn.at(tenant), int(waiting.seq[rows[0]]), tenant)
            for tenant, rows in queues.items()
        ]
        heapq.heapify(turns)
        # Nobody overtakes the oldest of its own tenant.
        held = np.isin(tenants, np.array(list(queues)))
        others = iter(best(~held, window).tolist())
        turn, others_turn = self._turns, self._others_turn
        left = window
        while left:
            row = next(others, None) if others_turn or not turns else None
            others_turn = row is None
            if row is None:
                if not turns:
                    break
                _, _, tenant = heapq.heappop(turns)
                rows = queues[tenant]
                row = rows.pop(0)
                turn += 1.0
                if rows:
                    heapq.heappush(turns, (turn, int(waiting.seq[rows[0]]), tenant))
            left -= 1
            yield row
        yield from best(held & ~late, left).tolist()


def _oldest(waiting: Requests, late: BoolArray) -> Rows:
    rows = np.flatnonzero(late)
    return rows[np.argsort(waiting.seq[rows], kind="stable")]


def _by_tenant(rows: Rows, tenants: IntArray, most: int) -> dict[int, list[int]]:
    """Up to ``most`` of the rows of each tenant, in their order."""
    rows = rows[np.argsort(tenants[rows], kind="stable")]
    codes, starts = np.unique(tenants[rows], return_index=True)
    return {
        int(code): part[:most].tolist()
        for code, part in zip(codes, np.split(rows, starts[1:]), strict=True)
    }
