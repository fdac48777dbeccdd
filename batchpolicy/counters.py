"""Virtual token counters: how much each tenant was served, and who has somebody waiting."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.state import StateArray


class TokenCounters:
    """A counter for each tenant, in weighted tokens; a tenant that was idle saves up no credit.

    Rows are taken one by one, so that any number of them told at once leaves the
    same counters as told singly.

    References
    ----------
    Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
    """

    __slots__ = ("_booked", "_books", "_forgotten", "_left_last", "_waiting", "queued", "served")

    def __init__(self) -> None:
        self.served = StateArray()
        """What each tenant was charged."""
        self.queued = StateArray()
        """Waiting requests of each tenant."""
        self._waiting: set[int] = set()
        """Slots that ``queued`` counts."""
        self._booked = StateArray()
        """Output tokens of each slot that were charged before they came."""
        self._books = False
        """Whether any ever were."""
        self._left_last = -1
        """Tenant of the request that left the queue last, to be served."""
        self._forgotten = 0.0
        """Highest counter of a tenant that was forgotten; a floor was as high once."""

    def arrived(self, rows: Requests) -> None:
        """Requests wait for the first time; lift tenants that had nothing waiting."""
        for slot, tenant in zip(rows.slot.tolist(), rows.tenant.tolist(), strict=True):
            if not self.queued.at(tenant):
                self.served.put(tenant, max(self.served.at(tenant), self.floor()))
            self._enter(slot, tenant)

    def returned(self, rows: Requests) -> None:
        """Requests that had left wait again."""
        for slot, tenant in zip(rows.slot.tolist(), rows.tenant.tolist(), strict=True):
            self._enter(slot, tenant)

    def left(self, rows: Requests) -> None:
        """Requests do not wait any more; those that did not are ignored."""
        columns = (rows.slot.tolist(), rows.tenant.tolist(), rows.first_scheduled_s.tolist())
        for slot, tenant, started_s in zip(*columns, strict=True):
            if slot in self._waiting:
                self._waiting.discard(slot)
                self.queued.put(tenant, self.queued.at(tenant) - 1.0)
                # Who leaves unserved says nothing of how much the others were served.
                if started_s == started_s:
                    self._left_last = tenant

    def charge(self, rows: Requests, tokens: FloatArray) -> None:
        """Charge the tenant of each row so many weighted tokens, shape ``(n,)``."""
        self.served.add(rows.tenant, tokens)

    def book(self, rows: Requests, tokens: FloatArray) -> None:
        """So many output tokens of each row, shape ``(n,)``, were charged before they come."""
        for slot, booked in zip(rows.slot.tolist(), tokens.tolist(), strict=True):
            self._booked.put(slot, booked)
            self._books = self._books or booked > 0.0

    def beyond_booked(self, rows: Requests, tokens: IntArray) -> FloatArray | None:
        """Tokens came out, shape ``(n,)``: how many of each row were not charged; None if all."""
        if not self._books:
            return tokens.astype(np.float64)
        left = self._booked.lower(rows.slot, tokens)
        if not len(left) or np.minimum.reduce(left) >= 0.0:
            return None
        self._booked[rows.slot] = np.maximum(left, 0.0)
        return np.maximum(-left, 0.0)

    def unspent(self, rows: Requests) -> FloatArray | None:
        """Tokens that were charged and will not come, shape ``(n,)``; None if there are none."""
        if not self._books:
            return None
        slots = rows.slot.tolist()
        left = np.array([self._booked.at(slot) for slot in slots])
        for slot in slots:
            self._booked.put(slot, 0.0)
        return left

    def floor(self) -> float:
        """Least counter among the tenants that wait; with none, that of the last to leave."""
        least = self.served.least_where_positive(self.queued)
        level = self.served.at(self._left_last) if least is None else least
        # Falls only where what was booked is paid back, which no newcomer should gain by.
        return max(level, self._forgotten)

    def forget(self, tenants: IntArray) -> BoolArray:
        """Forget tenants without live requests, shape ``(n,)``, whom arriving would lift anyway.

        To the floor as it is, or will be when who waits leaves unserved: below that it
        does not fall, so that a counter up to there says no more than that of a tenant
        never seen. One above it is a debt, and stays until the floor has passed it.
        """
        levels = self.served[tenants]
        least = self.served.least_where_positive(self.queued)
        level = max(self.served.at(self._left_last), self._forgotten)
        gone: BoolArray = levels <= (level if least is None else min(least, level))
        self._forgotten = float(levels[gone].max(initial=self._forgotten))
        self.served[tenants[gone]] = self.served.default
        return gone

    def _enter(self, slot: int, tenant: int) -> None:
        self._waiting.add(slot)
        self.queued.put(tenant, self.queued.at(tenant) + 1.0)
