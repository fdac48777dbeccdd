"""How one request waited: how long, who passed it, and what the bounds promised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from batchpolicy.config import Bounds
from batchpolicy.requests import Status


class Starts(NamedTuple):
    """Requests that started while another was overdue."""

    tenant: int = 0
    """Overdue ones of its own tenant."""
    others: int = 0
    """Overdue ones of other tenants."""
    ordinary: int = 0
    """Those that were not overdue."""


NO_STARTS = Starts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """How one request waited, and what the bounds promised it.

    "Its wait" is the last one: since its arrival, or since it was last preempted, until
    it started, ended, or now. Seconds are those of the ticks.
    """

    request_id: str
    status: Status
    bounds: Bounds
    """What was promised: ``max_wait_s``, ``max_overtakes``, ``max_bypass_s``, ``turns``."""
    since_s: float
    """When it began to wait."""
    waited_s: float
    """How long its wait took, or has so far."""
    total_wait_s: float
    """All its waits together."""
    overtakes: int
    """Later arrivals that started before it first did, or so far, while it could have."""
    tenant_overtakes: int
    """Those of its tenant."""
    overdue_s: float = math.nan
    """When a plan found it overdue in its wait; NaN if none did."""
    by: Literal["max_wait_s", "max_overtakes", ""] = ""
    """The bound that made it overdue."""
    ahead: int = 0
    """Older overdue requests that waited then; of its tenant under ``turns: tenant``."""
    tenants: int = 0
    """Tenants with overdue requests then."""
    starts: Starts = NO_STARTS
    """Who started while it was overdue."""
    service_s: float = 0.0
    """Service while it was overdue: seconds that all running requests held their seats."""

    @property
    def certified_wait_s(self) -> float:
        """No longer than this may its wait be, given the service that others had before it.

        ``max_wait_s`` for a request that was not overdue. For one that was, the time until
        it was, and the service of those that ran then and of those that started before it.
        """
        if math.isnan(self.overdue_s):
            return self.bounds.max_wait_s
        return self.overdue_s - self.since_s + self.service_s

    @property
    def certified_starts(self) -> int:
        """No more than this may have started while it was overdue.

        As it stood when it became overdue: older requests that come back later, and
        tenants that have overdue ones only later, are not in it.
        """
        if math.isnan(self.overdue_s):
            return 0
        if self.bounds.turns == "none":
            return self.ahead
        return 2 * (self.ahead + 1) * self.tenants - 1

    @property
    def kept(self) -> bool:
        """Whether only those started before it that may."""
        if self.bounds.turns == "none":
            return self.starts.ordinary == 0
        return self.starts.ordinary <= self.starts.tenant + self.starts.others + 1
