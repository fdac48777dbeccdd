"""How evenly tenants got in while they competed."""

from __future__ import annotations

import math

import numpy as np

from batchpolicy.engine import Run
from batchpolicy.requests import FloatArray

WINDOW_S = 1.0
PROMPT_PRICE = 1.0
OUTPUT_PRICE = 2.0


def tenant_fairness(run: Run) -> float:
    """Jain's index of how far each tenant got in what it asked for, or as much as anyone.

    The time from the first to the last arrival is cut into windows of 1 s. In a
    window a tenant asks for the requests that wait at its start and for those that
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
    requests = run.workload.requests
    names = sorted({r.tenant for r in requests})
    if len(names) < 2:
        return math.nan
    size = np.array([_size(r.prompt_tokens, min(r.output_tokens, r.max_tokens)) for r in requests])
    size = size / np.array([r.weight for r in requests])
    tenant = np.array([names.index(r.tenant) for r in requests])
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
    return _mean_index(steps.cumsum(axis=0)[:windows], got)


def _size(prompt_tokens: int, output_tokens: int) -> float:
    return PROMPT_PRICE * prompt_tokens + OUTPUT_PRICE * output_tokens


def _mean_index(asked: FloatArray, got: FloatArray) -> float:
    """Jain's index, averaged over windows; both arrays have shape ``(windows, tenants)``."""
    # What was added and taken off again may leave a crumb.
    asks = asked > 1e-6
    most = got.max(axis=1, keepdims=True)
    contested = (asks.sum(axis=1) >= 2) & (most[:, 0] > 0.0)
    if not contested.any():
        return math.nan
    least = np.where(asks, np.minimum(asked, most), 1.0)[contested]
    x = np.where(asks[contested], got[contested], 0.0) / least
    index = x.sum(axis=1) ** 2 / (asks[contested].sum(axis=1) * (x**2).sum(axis=1))
    return float(index.mean())
