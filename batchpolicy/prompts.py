"""Texts of a workload's requests as token ids, and what a replayed request says about itself."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

from batchpolicy.workload import WorkloadRequest

TOKEN, STOP = 7, 8
"""What every answer consists of, and what it ends with."""


class Prompts:
    """Makes prompts that share what the workload says that they share."""

    def __init__(self, requests: Iterable[WorkloadRequest], seed: int) -> None:
        self._seed = seed
        self._turns = Counter(r.session for r in requests if r.session)
        """Turns to come of each session."""
        self._said: dict[str, list[int]] = {}
        """Text of the latest turn of each session that goes on."""

    def prompt(self, r: WorkloadRequest) -> list[int]:
        """The prompt of a request; to be asked for in order of arrival."""
        prompt = self._shared(r)[: r.prompt_tokens]
        prompt += _tokens(f"{self._seed} {r.id}", r.prompt_tokens - len(prompt))
        if r.session:
            self._turns[r.session] -= 1
            if self._turns[r.session]:
                self._said[r.session] = prompt + _answer(r)
            else:
                self._said.pop(r.session, None)
        return prompt

    def _shared(self, r: WorkloadRequest) -> list[int]:
        """What the prompt begins with and other requests may have too; may be longer than it."""
        if r.prefix_blocks:
            blocks = (_tokens(f"block {b}", r.prefix_block_tokens) for b in r.prefix_blocks)
            return list(chain.from_iterable(blocks))
        if r.session in self._said:
            return self._said[r.session]
        return list(_tokens(f"prefix {r.prefix_id}", r.prefix_tokens if r.prefix_id else 0))


def said(r: WorkloadRequest) -> dict[str, Any]:
    """What a request says about itself, as ``RequestReader`` reads it."""
    given: dict[str, Any] = {"weight": r.weight, "true_output_tokens": r.output_tokens}
    for key, name in (("tenant", r.tenant), ("session_id", r.session)):
        if name:
            given[key] = name
    for key, value in (
        ("ttft_slo_s", r.ttft_slo_s),
        ("tpot_slo_s", r.tpot_slo_s),
        # Equal deadlines have to stay equal, which sums with the arrivals would not.
        ("deadline_at_s", r.deadline_s),
        ("queue_ttl_s", r.queue_ttl_s),
        ("predicted_output_tokens", r.predicted_output_tokens),
    ):
        if math.isfinite(value):
            given[key] = value
    return given


def _answer(r: WorkloadRequest) -> list[int]:
    """What a request will have produced at its end, if nobody cancels it."""
    if r.output_tokens <= r.max_tokens:
        return [TOKEN] * (r.output_tokens - 1) + [STOP]
    return [TOKEN] * r.max_tokens


def _tokens(name: str, count: int) -> range:
    """Token ids that differ between names, wherever Python runs."""
    start = zlib.crc32(name.encode()) << 20
    return range(start, start + count)
