"""LoRA adapters that have a place beside those that run."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import BoolArray, IntArray, Requests


def in_use(running: Requests) -> IntArray:
    """Adapter of each running row that computes something in the next step, -1 for none."""
    # Whose last token is in flight only waits for it.
    goes_on = running.computed_tokens < running.prompt_tokens + running.max_tokens - 1
    return np.where(goes_on, running.lora, -1)


def has_place(waiting: IntArray, running: IntArray, most: int) -> BoolArray:
    """Rows whose adapter runs, or may start to; codes of adapters, -1 for none.

    The others would only fill the plan, as the engine passes them by.
    """
    here = np.unique(running[running >= 0])
    if len(here) < most:
        return np.ones(len(waiting), dtype=np.bool_)
    return (waiting < 0) | np.isin(waiting, here)


def to_make_place(waiting: IntArray, running: IntArray) -> BoolArray:
    """Rows that may start while an adapter has to go: all but those of the one used least."""
    here, users = np.unique(running[running >= 0], return_counts=True)
    leaving: int = here[int(users.argmin())]
    stays: BoolArray = waiting != leaving
    return stays
