"""Which requests of a replication are measured."""

from __future__ import annotations

UNMEASURED = 0.1
"""Part of the requests at either end of a replication that is served and not measured."""


def measured_rows(n: int) -> slice:
    """Rows of the requests that are measured, of ``n`` in order of arrival.

    All but the first and the last tenth; of fewer than ten, all. The first find an
    empty engine and a cold cache, as the first of a slice of a trace would not have;
    the last have nobody behind them, so that a policy that puts work off would get it
    done for nothing. Both are served, and the run goes on until all have ended. Arrival
    decides and not the course of the run, so that every policy is measured on the same
    requests and none gains by ending some of them outside a window of time.
    """
    left_out = int(n * UNMEASURED + 1e-9)
    return slice(left_out, n - left_out)
