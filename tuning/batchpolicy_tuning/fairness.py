"""How evenly tenants were served while they competed."""

from __future__ import annotations

import math

import numpy as np

from batchpolicy.engine import Run
from batchpolicy.requests import FloatArray

WINDOW_S = 10.0
PROMPT_PRICE = 1.0
OUTPUT_PRICE = 2.0


def tenant_fairness(run: Run) -> float:
    """Jain's index of how far each tenant got what it asked for, or as much as anyone.

    The time between the first and the last arrival is cut into windows of 10 s, the
    last one longer. In a window a tenant asks for what it has not been served yet
    and for what arrives, and its satisfaction is ``served / min(asked, share)``, where
    ``share`` is the most that any tenant was served in that window, each counted by
    its weight: 1 for whoever got all it asked for, or as much as the best served.
    The index ``(sum x)^2 / (n * sum x^2)`` of the n tenants that ask, averaged over
    the windows in which at least two do, is 1 when nobody was held back while another
    had more, and falls to 1/n. NaN when no window has two tenants.

    Service is counted as in the virtual token counters, 1 for a prompt token and 2
    for one of output. A run tells no single steps, so a prompt counts evenly between
    the first time scheduled and the first token, the output evenly from there to the
    end of the request.
    """
    requests = run.workload.requests
    names = sorted({r.tenant for r in requests})
    if len(names) < 2:
        return math.nan
    codes = {name: i for i, name in enumerate(names)}
    tenant = np.array([codes[r.tenant] for r in requests])
    weight = np.ones(len(names))
    weight[tenant] = [r.weight for r in requests]
    edges = _edges(requests[0].arrival_s, requests[-1].arrival_s)
    sent_by = (tenant[:, None] == np.arange(len(names))).astype(np.float64)
    asked = _asked(run, edges) @ sent_by / weight
    served = _served(run, edges) @ sent_by / weight
    found = [
        _jain(asked[k + 1] - served[k], served[k + 1] - served[k]) for k in range(len(edges) - 1)
    ]
    known = [index for index in found if not math.isnan(index)]
    return sum(known) / len(known) if known else math.nan


def _edges(start_s: float, end_s: float) -> FloatArray:
    whole = max(int((end_s - start_s) / WINDOW_S), 1)
    edges = start_s + WINDOW_S * np.arange(whole + 1, dtype=np.float64)
    edges[-1] = end_s
    return edges


def _asked(run: Run, edges: FloatArray) -> FloatArray:
    """Service asked for up to each edge, shape ``(edges, n)``."""
    requests = run.workload.requests
    arrival_s = np.array([r.arrival_s for r in requests])
    prompt = np.array([r.prompt_tokens for r in requests])
    output = np.array([min(r.output_tokens, r.max_tokens) for r in requests])
    size = PROMPT_PRICE * prompt + OUTPUT_PRICE * output
    return np.where(arrival_s <= edges[:, None], size, 0.0)


def _served(run: Run, edges: FloatArray) -> FloatArray:
    """Service given up to each edge, shape ``(edges, n)``."""
    prompt = np.array([r.prompt_tokens for r in run.workload.requests])
    ended_s = np.where(np.isnan(run.finished_s), run.end_s, run.finished_s)
    prefill = _progress(edges, run.first_scheduled_s, run.first_token_s)
    decode = _progress(edges, run.first_token_s, ended_s)
    return PROMPT_PRICE * prompt * prefill + OUTPUT_PRICE * run.output_tokens * decode


def _progress(edges: FloatArray, start_s: FloatArray, end_s: FloatArray) -> FloatArray:
    """Part of the way from start to end at each edge; 0 for what never came."""
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.clip((edges[:, None] - start_s) / (end_s - start_s), 0.0, 1.0)
    # Start and end may be the same instant.
    return np.where(np.isnan(part), (edges[:, None] >= end_s).astype(np.float64), part)


def _jain(asked: FloatArray, served: FloatArray) -> float:
    # What was served is a sum of fractions, so that nothing left may look like a crumb.
    asks = asked > 1e-6
    if asks.sum() < 2 or served.max() <= 0.0:
        return math.nan
    got = served[asks] / np.minimum(asked[asks], served.max())
    return float(got.sum() ** 2 / (len(got) * (got**2).sum()))
