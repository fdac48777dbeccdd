"""Requests past a bound on waiting: they go before all others, tenants in turn."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from batchpolicy.config import Bounds
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.runner.certificates import Certificates
from batchpolicy.runner.order import Rows
from batchpolicy.runner.ranked import Ranked
from batchpolicy.runner.table import RequestTable
from batchpolicy.state import StateArray


class _Chosen(NamedTuple):
    """A row that a plan holds as overdue."""

    tenant: int
    closed: bool
    """The policy would not have let it start."""


class Overdue:
    """Knows who has waited too long, and puts them in front.

    A row is overdue once it waits longer than ``max_wait_s``, or was overtaken by
    ``max_overtakes`` later arrivals. With ``turns: none`` the oldest go before
    everybody, so that no later arrival overtakes them any more. With ``turns:
    tenant`` that holds within each tenant: one row a tenant counts at a time, tenants
    take turns among themselves, and all of them with the rows of other tenants.

    Admissions of rows that the policy's ``admissible`` had closed are counted as
    ``bound_over_mask``.
    """

    def __init__(self, bounds: Bounds, table: RequestTable, counters: Counter[str]) -> None:
        self._max_wait_s = bounds.max_wait_s
        self._max_overtakes = bounds.max_overtakes
        self._by_tenant = bounds.turns == "tenant"
        self._counters = counters
        bounded = self._max_wait_s < math.inf or self._max_overtakes is not None
        self.certificates = Certificates(bounds, table, counters) if bounded else None
        """None without a bound, of which there would be nothing to certify."""
        self._since_s = StateArray(np.nan)
        """When each slot that was preempted began to wait again."""
        self._turn = StateArray()
        """Of each tenant, the number of its last turn."""
        self._turns = 0.0
        self._others_turn = False
        self._chosen: dict[int, _Chosen] = {}
        """Overdue rows of the last plan, by slot."""

    def arrived(self, slot: int) -> None:
        """A slot has a new owner."""
        if self.certificates is not None:
            self._since_s.put(slot, math.nan)
            self.certificates.arrived(slot)

    def preempted(self, slot: int, now_s: float) -> None:
        """A row waits again."""
        if self.certificates is not None:
            self._since_s.put(slot, now_s)
            self.certificates.preempted(slot, now_s)

    def forget(self, tenants: IntArray) -> None:
        """These tenants have nothing waiting, and their codes go to others."""
        self._turn[tenants] = 0.0

    def admitted(self, slots: list[int], now_s: float) -> list[int]:
        """Waiting rows have taken a seat, in this order; those that were overdue."""
        if self.certificates is None:
            return []
        chosen = [self._chosen.pop(slot, None) for slot in slots]
        for row in chosen:
            self._others_turn = row is not None
            if row is not None:
                self._turns += 1.0
                self._turn.put(row.tenant, self._turns)
                if row.closed:
                    self._counters["bound_over_mask"] += 1
        was_overdue = [row is not None for row in chosen]
        self.certificates.admitted(slots, was_overdue, now_s)
        return [slot for slot, late in zip(slots, was_overdue, strict=True) if late]

    def is_chosen(self, slot: int) -> bool:
        """Whether the last plan holds this slot as overdue, so that nobody passes it."""
        return slot in self._chosen

    def chosen(self, slots: IntArray) -> list[bool]:
        """Which of these slots the last plan holds as overdue; empty where none are."""
        return [slot in self._chosen for slot in slots.tolist()] if self._chosen else []

    def rows(self, waiting: Requests, now_s: float) -> BoolArray:
        """Which rows are overdue; asked once in each plan that orders the queue."""
        if self.certificates is None:
            return np.zeros(len(waiting), dtype=np.bool_)
        # A slot of the plan before may have a new owner.
        self._chosen = {}
        by_wait: BoolArray = self._waits_since_s(waiting) + self._max_wait_s <= now_s
        late = by_wait
        if self._max_overtakes is not None:
            late = by_wait | (waiting.overtakes >= self._max_overtakes)
        if late.any():
            self.certificates.found(waiting, late, by_wait, now_s)
        return late

    def next_s(self, waiting: Requests) -> float:
        """When the first of the rows will have waited too long, if nothing happens before."""
        if self._max_wait_s == math.inf:
            return math.inf
        return float(self._waits_since_s(waiting).min(initial=math.inf)) + self._max_wait_s

    def _waits_since_s(self, waiting: Requests) -> FloatArray:
        since_s = self._since_s[waiting.slot]
        return np.where(np.isnan(since_s), waiting.arrival_s, since_s)

    def order(self, ranked: Ranked, late: BoolArray, window: int) -> Rows:
        """The ``window`` rows to plan, ``late`` ones first or in turn with the others."""
        waiting = ranked.waiting
        if self._by_tenant:
            found = list(self._in_turn(ranked, late, window))
        else:
            found = _oldest(waiting, late)[:window].tolist()
            found += ranked.best(~late, window - len(found)).tolist()
        slots, tenants, mask = waiting.slot, waiting.tenant, ranked.ranking.admissible
        self._chosen = {
            int(slots[row]): _Chosen(int(tenants[row]), mask is not None and not mask[row])
            for row in found
            if late[row]
        }
        return np.array(found, dtype=np.intp)

    def _in_turn(self, ranked: Ranked, late: BoolArray, window: int) -> Iterator[int]:
        waiting, best = ranked.waiting, ranked.best
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
