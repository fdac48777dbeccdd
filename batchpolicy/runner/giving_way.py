"""Long prompts give way to short ones: how large a part of a prompt one step may compute."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import IntArray

SHORT = 8
"""A prompt is short beside one of which this many times as much is left."""


def chunk_giving_way(
    left: IntArray, waiting: IntArray, budget: int, block_tokens: int
) -> int | None:
    """The largest part of a running prompt that leaves waiting short ones their tokens.

    Engines hand tokens to running requests first, so that a long prompt takes whole
    steps. The first of the waiting rows that are short beside the longest of the
    running ones get their tokens, up to half of the budget: it delays none of the
    running prompts by more than that. None where nothing has to give way.

    Parameters
    ----------
    left
        Prompt tokens left of each running row, shape ``(n,)``.
    waiting
        Prompt tokens of the rows that would start, in their order, shape ``(m,)``.
    budget
        Tokens of the step that are left beside its decodes.
    block_tokens
        Tokens of a KV block, the least that a part may be.
    """
    short = waiting * SHORT <= left.max(initial=0)
    first = len(short) if short.all() else int(short.argmin())
    room = min(int(waiting[:first].sum()), budget // 2)
    if not room or int(left.sum()) + room <= budget:
        return None
    # Rows with less than the part that all others get leave the rest of it to them.
    spare = budget - room
    ascending = np.sort(left)
    for i, tokens in enumerate(ascending.tolist()):
        share = spare // (len(ascending) - i)
        if tokens > share:
            return max(share, block_tokens)
        spare -= tokens
    return None
