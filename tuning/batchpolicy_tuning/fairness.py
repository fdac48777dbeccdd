"""How evenly tenants got in while they competed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from batchpolicy.engine import Run
from batchpolicy.requests import BoolArray, FloatArray, IntArray
from batchpolicy.workload import Workload
from batchpolicy_tuning.measured import measured_rows

WINDOW_S = 1.0
PROMPT_PRICE = 1.0
OUTPUT_PRICE = 2.0
CRUMB = 1e-6
"""What was added and taken off again may leave so much."""


def tenant_fairness(run: Run) -> float:
    """Jain's index of how far each tenant got in what it asked for, or as much as anyone.

    The time from the first to the last arrival is cut into windows of 1 s; those count
    in which requests arrive that are measured, see ``measured_rows``. In a window a
    tenant asks for the requests that wait at its start and for those that
    arrive and start within it, and gets those that start for the first time. A request
    counts as in the virtual token counters: a prompt token 1, an output token 2,
    over the weight of its tenant. With ``most`` the best that any tenant got in the
    window, ``x = got / min(asked, most)``: 1 for whoever got all it asked for, or as
    much as anyone. The index is ``(sum x)^2 / (n * sum x^2)`` over the n tenants that
    ask, averaged over the windows in which at least two ask and something starts: 1
    when nobody is kept waiting for a second while another gets more, down to 1/n.
    NaN when there is no such window.

    Starting is what schedulers decide: what runs, engines serve alike. Work that is
    displaced later is not taken back here; it shows as preemptions.
    """
    windows = _Windows.of(run)
    return _mean_index(windows.asked, windows.got) if len(windows.tenants) > 1 else math.nan


def service_gap(run: Run) -> float:
    """Largest change of the difference in service of two tenants while both are kept waiting.

    In tokens, weighted as in ``tenant_fairness`` and counted when requests start, in windows
    of 1 s: over all pairs, from the start to the end of each stretch of windows at whose
    ends both have work left. 0 when no two are ever kept waiting together, NaN with a single
    tenant.

    References
    ----------
    Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, for the bound.
    """
    windows = _Windows.of(run)
    if len(windows.tenants) < 2:
        return math.nan
    left = windows.asked - windows.got > CRUMB
    served = windows.got.cumsum(axis=0)
    gap = 0.0
    for i, j in combinations(np.flatnonzero(left.any(axis=0)).tolist(), 2):
        both = np.flatnonzero(left[:, i] & left[:, j])
        if len(both):
            lead = served[both, i] - served[both, j]
            before = lead - (windows.got[both, i] - windows.got[both, j])
            starts = np.flatnonzero(np.diff(both, prepend=-2) > 1)
            highest = np.maximum(np.maximum.reduceat(lead, starts), before[starts])
            lowest = np.minimum(np.minimum.reduceat(lead, starts), before[starts])
            gap = max(gap, float((highest - lowest).max()))
    return gap


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Work of tenants in a run, as ``tenant_fairness`` counts it but without weights."""

    tenants: tuple[str, ...]
    tenant_row: IntArray
    """Tenant of each request."""
    arrived: FloatArray
    """By tenant, all that it asked for in requests that are measured."""
    started: FloatArray
    """By tenant, what it got while tenants competed: in windows in which at least two ask."""


def demand(run: Run) -> Demand:
    """What each tenant asked for, and what it got while they competed."""
    windows = _Windows.of(run)
    contested = _contested(windows.asked, windows.got)
    arrived = np.zeros(len(windows.tenants))
    rows = measured_rows(len(run.workload.requests))
    np.add.at(arrived, windows.tenant_row[rows], _sizes(run.workload)[rows])
    weight = np.ones(len(windows.tenants))
    weight[windows.tenant_row] = [r.weight for r in run.workload.requests]
    return Demand(
        windows.tenants, windows.tenant_row, arrived, windows.got[contested].sum(axis=0) * weight
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Work by window and tenant, shape ``(windows, tenants)``."""

    tenants: tuple[str, ...]
    tenant_row: IntArray
    asked: FloatArray
    got: FloatArray

    @classmethod
    def of(cls, run: Run) -> _Windows:
        requests = run.workload.requests
        names = sorted({r.tenant for r in requests})
        size = _sizes(run.workload) / np.array([r.weight for r in requests])
        place = {name: i for i, name in enumerate(names)}
        tenant = np.array([place[r.tenant] for r in requests])
        arrival_s = np.array([r.arrival_s for r in requests]) - requests[0].arrival_s
        started_s = run.first_scheduled_s - requests[0].arrival_s
        windows = max(math.ceil(arrival_s[-1] / WINDOW_S), 1)
        starts = started_s < windows * WINDOW_S
        last = np.full(len(requests), windows - 1)
        last[starts] = (started_s[starts] / WINDOW_S).astype(np.int64)
        # The first window at whose start it waits, or the one in which it also starts.
        first = np.minimum(np.ceil(arrival_s / WINDOW_S).astype(np.int64), last)
        got = np.zeros((windows, len(names)))
        np.add.at(got, (last[starts], tenant[starts]), size[starts])
        steps = np.zeros((windows + 1, len(names)))
        np.add.at(steps, (first, tenant), size)
        np.add.at(steps, (last + 1, tenant), -size)
        measured = measured_rows(len(requests))
        first_s, last_s = float(arrival_s[measured][0]), float(arrival_s[measured][-1])
        counted = slice(math.ceil(first_s), max(math.ceil(last_s), 1))
        asked = steps.cumsum(axis=0)[:windows]
        return cls(tuple(names), tenant, asked[counted], got[counted])


def _sizes(workload: Workload) -> FloatArray:
    return np.array(
        [_size(r.prompt_tokens, min(r.output_tokens, r.max_tokens)) for r in workload.requests]
    )


def _size(prompt_tokens: int, output_tokens: int) -> float:
    return PROMPT_PRICE * prompt_tokens + OUTPUT_PRICE * output_tokens


def _mean_index(asked: FloatArray, got: FloatArray) -> float:
    """Jain's index, averaged over windows; both arrays have shape ``(windows, tenants)``."""
    contested = _contested(asked, got)
    if not contested.any():
        return math.nan
    asks, most = asked > CRUMB, got.max(axis=1, keepdims=True)
    least = np.where(asks, np.minimum(asked, most), 1.0)[contested]
    x = np.where(asks[contested], got[contested], 0.0) / least
    index = x.sum(axis=1) ** 2 / (asks[contested].sum(axis=1) * (x**2).sum(axis=1))
    return float(index.mean())


def _contested(asked: FloatArray, got: FloatArray) -> BoolArray:
    """Windows in which at least two tenants ask and something starts."""
    contested: BoolArray = ((asked > CRUMB).sum(axis=1) >= 2) & (got.max(axis=1) > 0.0)
    return contested
