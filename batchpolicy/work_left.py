"""How much of a request is still to be computed."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import FloatArray, Requests


def output_to_come(requests: Requests) -> FloatArray:
    """Output tokens predicted and not out yet, shape ``(n,)``; 0 where nobody predicts.

    ``max_tokens`` is a ceiling that few answers reach, and takes no prediction's place.
    """
    if requests.at_default("predicted_output_tokens"):
        return np.zeros(len(requests))
    to_come = requests.predicted_output_tokens - requests.output_tokens
    # Of NaN and a number fmax takes the number.
    return np.fmax(to_come, 0.0, out=to_come)


def work_left(requests: Requests, output_weight: float) -> FloatArray:
    """Tokens still to compute, shape ``(n,)``: prompt not cached, and the output predicted.

    An output token counts as ``output_weight`` prompt tokens.
    """
    if requests.at_default("predicted_output_tokens"):
        return requests.prefill_tokens.astype(np.float64)
    work = output_to_come(requests)
    work *= output_weight
    work += requests.prefill_tokens
    return work
