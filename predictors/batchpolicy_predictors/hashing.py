"""Prompts as hashes of what their first and last tokens are: no text, no vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from batchpolicy.requests import BoolArray, IntArray

HEAD = TAIL = 32
"""Tokens that are looked at, at either end; what stands between is not read."""
SHINGLES = HEAD + TAIL + (HEAD - 1) + (TAIL - 1)
"""Single tokens and neighbouring pairs, of the head and of the tail each for itself."""
HashArray = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)
_PAD = -1
_SIDE = np.repeat(np.array([1, 2], dtype=np.uint64), [HEAD, TAIL])
_WITHIN = np.flatnonzero(np.arange(HEAD + TAIL - 1) != HEAD - 1)
"""Pairs but for the one across the seam, which is of no prompt."""


def ends(prompts: Sequence[Sequence[int]]) -> IntArray:
    """Head and tail of each prompt, shape ``(n, 64)``; -1 where it is shorter than that.

    A short prompt shows up in both. Ids below zero count as none.
    """
    flat: list[int] = []
    for prompt in prompts:
        head, tail = prompt[:HEAD], prompt[-TAIL:]
        flat += head
        flat += [_PAD] * (HEAD - len(head) + TAIL - len(tail))
        flat += tail
    return np.array(flat, dtype=np.int64).reshape(len(prompts), HEAD + TAIL)


def shingles(tokens: IntArray) -> tuple[HashArray, BoolArray]:
    """Hashes of tokens and pairs of ``ends``, and which there are; both ``(n, SHINGLES)``.

    Equal wherever numpy runs. Head and tail differ: a word that asks at the end need not
    mean the same at the start.
    """
    there = tokens >= 0
    single = _mixed(tokens.astype(np.uint64) * _ODD + _SIDE)
    pair = _mixed(single.take(_WITHIN, axis=1) * _OTHER + single.take(_WITHIN + 1, axis=1))
    both = there.take(_WITHIN, axis=1) & there.take(_WITHIN + 1, axis=1)
    return np.concatenate([single, pair], axis=1), np.concatenate([there, both], axis=1)


def _mixed(values: HashArray) -> HashArray:
    """Every bit of the result depends on every bit of the value; in place."""
    values ^= values >> _HALF
    values *= _ODD
    values ^= values >> _HALF
    return values
