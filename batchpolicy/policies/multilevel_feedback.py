"""Skip-join multilevel feedback."""

from __future__ import annotations

import numpy as np
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policies.feedback import Feedback
from batchpolicy.policy import CodeKind, Step
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.state import StateArray


class MultilevelFeedback(Feedback):
    """Serve first who was served least so far, in levels that a long prompt joins further down.

    For lengths that nobody predicts: each request goes down level by level with what it
    gets, and gives way to one of a better level. It joins at the first level whose quantum
    its prompt fits into, as a prompt cannot be left half way for nothing; tokens in the prefix
    cache do not count. Whoever waited for ``promote_s`` begins again in the first level,
    so that nobody waits for ever. The published system swaps KV out; here what gives way is
    computed again, which gains where few answers are long and prompts are short.

    References
    ----------
    B. Wu et al., "Fast Distributed Inference Serving for Large Language Models"
    (FastServe), 2023, arXiv 2305.05920.
    """

    _spent: StateArray = PrivateAttr(default_factory=lambda: StateArray(-1.0))
    """Service of each request, as if from the first level; -1 before its first start."""

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        super().on_arrived(rows, step)
        self._spent[rows.slot] = -1.0

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        spent = self._spent[rows.slot]
        self._spent[rows.slot] = np.where(spent < 0.0, self._starts[self._level(rows)], spent)
        super().on_admitted(rows, step)

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        return np.full(len(codes), True)

    @override
    def _level(self, requests: Requests) -> IntArray:
        spent = self._spent[requests.slot]
        level = np.searchsorted(self._quanta, requests.prompt_tokens - requests.cached_tokens)
        # Of a long queue few ever started.
        (started,) = np.nonzero(spent >= 0.0)
        level[started] = self._level_after(spent[started])
        return level

    @override
    def _attained(self, started: Requests) -> FloatArray:
        return self._spent[started.slot]

    @override
    def _serve(self, rows: Requests, tokens: FloatArray) -> None:
        self._spent.add(rows.slot, tokens)

    @override
    def _restart(self, rows: Requests) -> None:
        self._spent[rows.slot] = 0.0
