"""The books behind certificates: what happened while each request waited."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from batchpolicy.config import Bounds
from batchpolicy.requests import BoolArray, IntArray, Requests, Status
from batchpolicy.runner.certificate import Certificate, Starts
from batchpolicy.runner.order import Rows
from batchpolicy.runner.table import RequestTable
from batchpolicy.state import StateArray

MAX_ENDED = 1024
"""Requests that have ended whose certificates are kept, the latest."""
_MANY_STARTED = 4096
"""Starts of a tenant to remember before those are forgotten that nobody waits behind."""

_FEW = 8
"""Rows for which counting costs less than a sort of all."""


@dataclass(slots=True)
class _Overdue:
    """What had been counted when a request became overdue; once it starts, what was since."""

    since_s: float
    by_wait: bool
    ahead: int
    tenants: int
    starts: Starts
    service_s: float


@dataclass(slots=True)
class _Wait:
    """The last wait of one request."""

    since_s: float = math.nan
    """When it began; NaN for the first wait, which begins with the arrival."""
    waited_s: float = math.nan
    """How long it took; NaN while it lasts."""
    before_s: float = 0.0
    """The waits before it."""
    tenant_overtakes: int = 0
    overdue: _Overdue | None = None


class Certificates:
    """The certificates of all requests that live, and of the last that ended.

    Costs a little at each event of a request, and next to nothing in a step.
    """

    def __init__(self, bounds: Bounds, table: RequestTable, counters: Counter[str]) -> None:
        self._bounds = bounds
        self._table = table
        self._counters = counters
        self._waits: dict[int, _Wait] = {}
        """By slot."""
        self._is_found = StateArray()
        """1 for each slot whose owner was found overdue in its wait."""
        self._ended: dict[str, Certificate] = {}
        self._started: dict[int, list[int]] = {}
        """Of each tenant, ascending submission numbers of requests that started."""
        self._many_started = _MANY_STARTED
        self._own_starts: dict[int, int] = {}
        """Starts of overdue requests, by tenant."""
        self._overdue_starts = self._ordinary_starts = 0
        self._served_s = 0.0
        self._running, self._at_s = 0, 0.0

    def begin(self, now_s: float) -> None:
        """A step starts: who ran since the last one was served until now."""
        self._served_s += self._running * (now_s - self._at_s)
        self._at_s = now_s

    def runs(self, running: int) -> None:
        """So many hold a seat until the next step."""
        self._running = running

    def arrived(self, slot: int) -> None:
        """A slot has a new owner."""
        self._waits[slot] = _Wait()
        self._is_found.put(slot, 0.0)

    def preempted(self, slot: int, now_s: float) -> None:
        """A row waits again."""
        old = self._waits[slot]
        self._waits[slot] = _Wait(
            since_s=now_s,
            before_s=old.before_s + old.waited_s,
            tenant_overtakes=old.tenant_overtakes,
        )
        self._is_found.put(slot, 0.0)

    def ready(self, slot: int, flag: bool) -> None:
        """A row can start now, or cannot any more; only what passes between counts."""
        if self._never_ran(slot):
            late = self._late(slot)
            self._waits[slot].tenant_overtakes += -late if flag else late

    def found(self, waiting: Requests, late: BoolArray, by_wait: BoolArray, now_s: float) -> None:
        """A plan finds the rows of ``late`` overdue, those of ``by_wait`` by their wait."""
        slots = waiting.slot[late]
        new = self._is_found[slots] == 0.0
        if not new.any():
            return
        self._is_found[slots[new]] = 1.0
        self._counters["overdue"] += int(new.sum())
        tenant = waiting.tenant[late]
        group = tenant if self._bounds.turns == "tenant" else np.zeros_like(tenant)
        ahead = _ahead(group, waiting.seq[late], np.flatnonzero(new))
        # Codes are dense, and -1 stands for none.
        tenants = int(np.count_nonzero(np.bincount(tenant + 1)))
        rows = zip(
            slots[new].tolist(),
            tenant[new].tolist(),
            by_wait[late][new].tolist(),
            ahead.tolist(),
            strict=True,
        )
        for slot, code, waited, before in rows:
            self._waits[slot].overdue = _Overdue(
                now_s, waited, before, tenants, self._starts(code), self._served_s
            )

    def admitted(self, slots: list[int], overdue: list[bool], now_s: float) -> None:
        """Waiting rows take a seat in this order; ``overdue`` as the plan had them."""
        first = [slot for slot in slots if self._never_ran(slot)]
        for slot in first:
            # Of who could not start, what passed before that is counted already.
            late = self._late(slot) if self._table.columns["ready"][slot] else 0
            self._waits[slot].tenant_overtakes += late
        for slot in first:
            started = self._started.setdefault(self._tenant(slot), [])
            bisect.insort(started, int(self._table.columns["seq"][slot]))
            if len(started) > self._many_started:
                self._forget()
        for slot, was_overdue in zip(slots, overdue, strict=True):
            wait, tenant = self._waits[slot], self._tenant(slot)
            wait.waited_s = max(now_s - self._began_s(slot), 0.0)
            if wait.overdue is not None:
                wait.overdue.starts = self._starts_since(wait.overdue, tenant)
                wait.overdue.service_s = self._served_s - wait.overdue.service_s
            if was_overdue:
                self._overdue_starts += 1
                self._own_starts[tenant] = self._own_starts.get(tenant, 0) + 1
            else:
                self._ordinary_starts += 1

    def ended(self, request_id: str, slot: int) -> None:
        """A request has ended, and its status says how."""
        certificate = self.of(request_id, slot)
        # A client may use an id again; then the latest counts.
        self._ended.pop(request_id, None)
        self._ended[request_id] = certificate
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        most = max(self._counters["most_overtakes"], certificate.overtakes)
        self._counters["most_overtakes"] = most
        del self._waits[slot]

    def of_ended(self, request_id: str) -> Certificate | None:
        """The certificate of a request that ended, if it is among the last."""
        return self._ended.get(request_id)

    def of(self, request_id: str, slot: int) -> Certificate:
        """The certificate of a slot's owner."""
        wait, row = self._waits[slot], self._table.rows(np.array([slot]))
        waits, since_s = math.isnan(wait.waited_s), self._began_s(slot)
        waited_s = max(self._table.now_s - since_s, 0.0) if waits else wait.waited_s
        counts = self._never_ran(slot) and bool(row.ready[0])
        certificate = Certificate(
            request_id=request_id,
            status=Status(int(row.status[0])),
            bounds=self._bounds,
            since_s=since_s,
            waited_s=waited_s,
            total_wait_s=wait.before_s + waited_s,
            overtakes=int(row.overtakes[0]),
            tenant_overtakes=wait.tenant_overtakes + (self._late(slot) if counts else 0),
        )
        overdue = wait.overdue
        if overdue is None:
            return certificate
        starts, service_s = overdue.starts, overdue.service_s
        if waits:
            starts = self._starts_since(overdue, self._tenant(slot))
            service_s = self._served_s - service_s
        return replace(
            certificate,
            overdue_s=overdue.since_s,
            by="max_wait_s" if overdue.by_wait else "max_overtakes",
            ahead=overdue.ahead,
            tenants=overdue.tenants,
            starts=starts,
            service_s=service_s,
        )

    def _never_ran(self, slot: int) -> bool:
        return math.isnan(self._table.columns["first_scheduled_s"][slot])

    def _tenant(self, slot: int) -> int:
        return int(self._table.columns["tenant"][slot])

    def _began_s(self, slot: int) -> float:
        since_s = self._waits[slot].since_s
        return float(self._table.columns["arrival_s"][slot]) if math.isnan(since_s) else since_s

    def _late(self, slot: int) -> int:
        """Later arrivals of its tenant that have started."""
        started = self._started.get(self._tenant(slot), [])
        seq = int(self._table.columns["seq"][slot])
        return len(started) - bisect.bisect_right(started, seq)

    def _starts(self, tenant: int) -> Starts:
        own = self._own_starts.get(tenant, 0)
        return Starts(own, self._overdue_starts - own, self._ordinary_starts)

    def _starts_since(self, overdue: _Overdue, tenant: int) -> Starts:
        now, before = self._starts(tenant), overdue.starts
        return Starts(*(a - b for a, b in zip(now, before, strict=True)))

    def _forget(self) -> None:
        """Starts that everybody who waits came after tell nothing any more."""
        slots = np.fromiter(self._waits, dtype=np.intp, count=len(self._waits))
        columns = self._table.columns
        slots = slots[np.isnan(columns["first_scheduled_s"][slots])]
        oldest = int(columns["seq"][slots].min(initial=self._table.next_seq))
        for started in self._started.values():
            del started[: bisect.bisect_left(started, oldest)]
        longest = max(map(len, self._started.values()))
        self._started = {tenant: some for tenant, some in self._started.items() if some}
        self._many_started = max(_MANY_STARTED, 2 * longest)


def _ahead(group: IntArray, seq: IntArray, rows: Rows) -> IntArray:
    """Of each of these rows, how many of its group are older."""
    if len(rows) < _FEW:
        older = [np.count_nonzero((group == group[row]) & (seq < seq[row])) for row in rows]
        return np.array(older, dtype=np.int64)
    order = np.lexsort((seq, group))
    place = np.empty(len(seq), dtype=np.int64)
    place[order] = np.arange(len(seq))
    first: IntArray = np.searchsorted(group[order], group[rows], side="left")
    return place[rows] - first
