"""Least attained service, of a session."""

from __future__ import annotations

import numpy as np
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policies.feedback import Feedback
from batchpolicy.policy import CodeKind, Step
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.state import StateArray


class LeastAttainedService(Feedback):
    """Serve first the session that was served least so far, in levels.

    For agents and other programs of many calls: what counts is the service of all requests of
    a session, those that ended included, so that a short program is not held up by the calls
    of long ones. A request without a session is one of its own. Sessions of better levels
    displace others. Whoever waited for ``promote_s`` starts before all others,
    and its session begins again in the first level; ``preempt.max_each`` bounds how often it gives
    way after that, so that nobody waits for ever.

    References
    ----------
    M. Luo et al., "Autellix: An Efficient Serving Engine for LLM Agents as General Programs",
    2025, arXiv 2502.13965, for the service of programs; L. Kleinrock, "Queueing Systems",
    vol. 2, 1976, for the order.
    """

    _of_session: StateArray = PrivateAttr(default_factory=StateArray)
    """Service of each session since it last began."""
    _of_request: StateArray = PrivateAttr(default_factory=StateArray)
    """Of each request, for those that have no session."""

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        super().on_arrived(rows, step)
        self._of_request[rows.slot] = 0.0

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        if kind == "session":
            # Who comes back after that many other sessions may begin again.
            self._of_session[codes] = 0.0
        return np.full(len(codes), True)

    @override
    def _level(self, requests: Requests) -> IntArray:
        return self._level_after(self._attained(requests))

    @override
    def _attained(self, started: Requests) -> FloatArray:
        session = started.session
        alone = self._of_request[started.slot]
        return np.where(session < 0, alone, self._of_session[session])

    @override
    def _serve(self, rows: Requests, tokens: FloatArray) -> None:
        self._of_request.add(rows.slot, tokens)
        # Code -1 collects what nobody asks for.
        self._of_session.add(rows.session, tokens)

    @override
    def _restart(self, rows: Requests) -> None:
        self._of_request[rows.slot] = 0.0
        self._of_session[rows.session] = 0.0
