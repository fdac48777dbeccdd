"""How much of a request is still to be computed."""

from __future__ import annotations

import math

import numpy as np

from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, Requests


def output_to_come(requests: Requests, step: Step) -> FloatArray:
    """Output tokens predicted and not out yet, shape ``(n,)``; 0 where nobody predicts.

    Among requests that are predicted, one that is not, or not yet, counts as they do on
    average, ``typical_output``, and at most as its ceiling: it should neither pass the others
    for that nor stay behind them. Where no prediction is known at all ``max_tokens`` takes its
    place for nobody, as few answers reach it.
    """
    if requests.at_default("predicted_output_tokens"):
        return np.zeros(len(requests))
    to_come = requests.predicted_output_tokens.copy()
    unknown = to_come != to_come
    if unknown.any():
        np.putmask(to_come, unknown, np.minimum(typical_output(step), requests.max_tokens))
    if not requests.at_default("output_tokens"):
        to_come -= requests.output_tokens
    return np.maximum(to_come, 0.0, out=to_come)


def typical_output(step: Step) -> float:
    """Mean of what is predicted for those that wait and run, in whole tokens; 0 without any."""
    total, count = 0.0, 0
    for rows in (step.waiting, step.running):
        predicted = np.minimum(rows.predicted_output_tokens, rows.max_tokens)
        known = predicted[predicted == predicted]
        total += float(known.sum())
        count += len(known)
    # Whole, so that the order in which they were summed up makes no difference.
    return float(math.ceil(total / count - 1e-6)) if count else 0.0


def work_left(requests: Requests, step: Step, output_weight: float) -> FloatArray:
    """Tokens still to compute, shape ``(n,)``: prompt not cached, and ``output_to_come``.

    An output token counts as ``output_weight`` prompt tokens.
    """
    if requests.at_default("predicted_output_tokens"):
        return requests.prefill_tokens.astype(np.float64)
    work = output_to_come(requests, step)
    if output_weight != 1.0:
        work *= output_weight
    work += requests.prefill_tokens
    return work
