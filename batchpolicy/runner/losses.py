"""What a running request loses when it is displaced."""

from __future__ import annotations

import numpy as np

from batchpolicy.policy import Step
from batchpolicy.requests import BoolArray, IntArray, Requests


def recomputed_tokens(rows: Requests, freed_blocks: IntArray, block_tokens: int) -> IntArray:
    """Tokens that each row would compute a second time, shape ``(n,)``.

    Those in the blocks that it frees: what others hold as well is found again. Each
    block freed so costs as much as any other, and what saves work is to free few.
    """
    return np.minimum(rows.computed_tokens, freed_blocks * block_tokens)


def would_be_late(rows: Requests, loses: IntArray, step: Step) -> BoolArray:
    """Rows whose targets are met so far, and which displacement alone would make late.

    A row loses at least the time to compute again what it ``loses``, by steps as long
    as the last one. Targets that are missed already, or leave that time, spare nobody.
    """
    if not np.isfinite(step.step_s):
        return np.zeros(len(rows), dtype=np.bool_)
    due_s = rows.next_token_due_s
    deadline_s = rows.deadline_s
    if np.isfinite(deadline_s).any():
        to_come = rows.predicted_output_tokens - rows.output_tokens
        to_come = np.where(np.isnan(to_come), 0.0, np.maximum(to_come, 0.0))
        due_s = np.minimum(due_s, deadline_s - to_come * step.step_s)
    slack_s = due_s - step.now_s
    again_s = step.step_s * (1.0 + loses / step.max_token_budget)
    late: BoolArray = (slack_s >= 0.0) & (slack_s < again_s)
    return late
