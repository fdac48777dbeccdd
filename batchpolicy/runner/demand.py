"""What running requests will take in the next step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchpolicy.requests import BoolArray, IntArray, Requests


@dataclass(frozen=True, slots=True)
class Demand:
    """Tokens and new KV blocks of each running row in one step; shape ``(n,)``.

    Tokens are handed out to decodes first, then to prefills in the order given.
    """

    tokens: IntArray
    blocks: IntArray
    wanted: int
    """Tokens that the rows could use, were the budget large enough."""


def demand(
    rows: Requests,
    *,
    token_budget: int,
    block_tokens: int,
    decode_tokens: int,
    chunk: int | None,
    grown: int | None = None,
) -> Demand:
    """Demand of running ``rows`` in the next step under ``token_budget``.

    A decode takes ``decode_tokens`` of the budget, and KV for ``grown`` tokens: where it
    has steps of its own, these come after the one that is planned. By default both are one.
    """
    prefill = rows.prefill_tokens
    decoding = prefill == 0
    want = np.where(decoding, decode_tokens, prefill)
    if chunk is not None:
        want = np.where(decoding, want, np.minimum(want, chunk))
    wanted = int(want.sum())
    tokens = want if wanted <= token_budget else _share(want, decoding, token_budget)
    computed = rows.computed_tokens
    held = tokens if grown in (None, decode_tokens) else np.where(decoding, grown, tokens)
    blocks = _blocks(computed + held, block_tokens) - _blocks(computed, block_tokens)
    return Demand(tokens, blocks, wanted)


def _share(want: IntArray, decoding: BoolArray, budget: int) -> IntArray:
    order = np.argsort(~decoding, kind="stable")
    before = np.cumsum(want[order]) - want[order]
    got = np.empty_like(want)
    got[order] = np.clip(budget - before, 0, want[order])
    return got


def _blocks(tokens: IntArray, block_tokens: int) -> IntArray:
    return -(-tokens // block_tokens)
