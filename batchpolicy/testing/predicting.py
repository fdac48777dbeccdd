"""Promises about requests of which nothing is predicted, among others that are."""

from __future__ import annotations

import numpy as np

from batchpolicy.policy import Policy
from batchpolicy.testing.compare import experienced, fail, scene, scene_of

_TOLERANCE = 1e-9


def check_no_prediction_counts_as_some_length(policy: Policy) -> None:
    """Among predicted requests, one without counts as one token at least, its ceiling at most.

    Each request is one of these for a step, until it is predicted: as one with nothing to put
    out it would pass all others then.
    """
    at = scene()
    predicted = at.table.columns["predicted_output_tokens"]
    lived = experienced(policy, at)
    for slot in at.waiting.slot[::4].tolist():
        ceiling = float(at.table.columns["max_tokens"][slot])
        kept, found = float(predicted[slot]), list[float]()
        for value in (np.nan, 1.0, ceiling):
            predicted[slot] = value
            now = scene_of(at.table)
            row = now.waiting.take(now.waiting.slot == slot)
            found.append(float(lived.benefit(row, now.step)[0]))
        predicted[slot] = kept
        unknown, *known = found
        slack = _TOLERANCE * max(abs(value) for value in found)
        if not min(known) - slack <= unknown <= max(known) + slack:
            fail(
                policy,
                "benefit",
                f"returned {unknown} for a row without a prediction, which is outside of "
                f"{min(known)} to {max(known)}, those of 1 and of {ceiling:g} tokens",
            )
