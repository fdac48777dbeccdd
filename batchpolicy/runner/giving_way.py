"""Prompts give way: how large a part of a running prompt one step may compute."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import BoolArray, IntArray

SHORT = 8
"""A prompt is short beside one of which this many times as much is left."""


def chunk_giving_way(
    left: IntArray, waiting: IntArray, urgent: BoolArray, budget: int, block_tokens: int
) -> int | None:
    """The largest part of a running prompt that leaves waiting rows their tokens.

    Engines hand tokens to running requests first, so that a long prompt takes whole
    steps. The first of the waiting rows that are urgent, or short beside the longest of
    the running ones, get their tokens. Short ones get up to half of the budget: they
    delay none of the running prompts by more than that. Of urgent ones come as many as
    can be computed whole, as engines know one part for all prompts of a step; the first,
    if it cannot be, shares the step with those that run. None where nothing has to give way.

    Parameters
    ----------
    left
        Prompt tokens left of each running row, shape ``(n,)``.
    waiting
        Prompt tokens of the rows that would start, in their order, shape ``(m,)``.
    urgent
        Which of those are of a better class than every running row of ``left``.
    budget
        Tokens of the step that are left beside its decodes.
    block_tokens
        Tokens of a KV block, the least that a part may be.
    """
    goes_first = urgent | (waiting * SHORT <= left.max(initial=0))
    first = len(waiting) if goes_first.all() else int(goes_first.argmin())
    waiting, urgent = waiting[:first], urgent[:first]
    room = largest = 0
    for tokens in waiting[urgent].tolist():
        part = _part(left, budget - room - tokens)
        if part is not None and part < max(tokens, largest):
            if not room:
                part = _part(np.append(left, tokens), budget)
                return None if part is None else max(part, block_tokens)
            break
        room, largest = room + tokens, max(tokens, largest)
    short = min(int(waiting[~urgent].sum()), budget // 2, budget - room)
    part = _part(left, budget - room - short) if room + short else None
    # A smaller part would cut the urgent ones as well.
    return None if part is None else max(part, largest, block_tokens)


def _part(left: IntArray, spare: int) -> int | None:
    """The largest part of which each row can have one, or all it has left; None for all of it."""
    ascending = np.sort(left)
    # Rows with less than the part that all others get leave the rest of it to them.
    for i, tokens in enumerate(ascending.tolist()):
        share = spare // (len(ascending) - i)
        if tokens > share:
            return share
        spare -= tokens
    return None
