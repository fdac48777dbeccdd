"""Policies that tests hand to a runner, without a file that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import BaseModel, PrivateAttr
from typing_extensions import override

from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.policy import Limits, Policy, Ranking, Step, Work
from batchpolicy.preemption import Preempt, Preemption
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests


class _Given(PolicyConfig):
    _policy: Policy = PrivateAttr()

    @override
    def build_policy(self) -> Policy:
        return self._policy


def config_of(
    policy: Policy, preempt: Preempt | Preemption | None = None, **parts: BaseModel | None
) -> PolicyConfig:
    """A config whose policy is this very one; ``parts`` are bounds, queue and limits."""
    name = type(policy).__name__
    config = _Given(policy=PolicySpec(name=name), preempt=preempt, title=name, **parts)
    config._policy = policy
    return config


class Arrival(Policy):
    """By submission, and nothing else: the plainest policy there is."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -requests.seq.astype(np.float64)


class Shortest(Policy):
    """The shortest prompt first: an order that differs from arrival's."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -requests.prompt_tokens.astype(np.float64)


class Recorder(Policy):
    """Writes down every call with the ids it was given, in order."""

    _calls: list[tuple[str, list[str]]] = PrivateAttr(default_factory=list)
    _work: list[Work] = PrivateAttr(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, list[str]]]:
        """Name and ids of each call so far."""
        return self._calls

    @property
    def work(self) -> list[Work]:
        """What each ``on_computed`` was told."""
        return self._work

    def named(self, kind: str) -> list[list[str]]:
        """Ids of each call of one kind."""
        return [ids for name, ids in self._calls if name == kind]

    def _note(self, name: str, rows: Requests) -> None:
        self._calls.append((name, rows.request_id))

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        self._note("benefit", requests)
        return -requests.seq.astype(np.float64)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._note("arrived", rows)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        self._note("admitted", rows)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._note("computed", rows)
        self._work.append(work)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._note("preempted", rows)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self._note("finished", rows)


class Patched(Policy):
    """The inner policy, with some methods replaced by functions of rows and step."""

    _inner: Policy = PrivateAttr(default_factory=Arrival)
    _patches: dict[str, Callable[..., Any]] = PrivateAttr(default_factory=dict)

    @classmethod
    def over(cls, inner: Policy, **patches: Callable[..., Any]) -> Patched:
        """``inner`` with ``patches`` by name of method."""
        made = cls()
        made._inner = inner
        made._patches = patches
        return made

    def _call(self, name: str, *args: Any) -> Any:
        return self._patches.get(name, getattr(self._inner, name))(*args)

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return self._call("benefit", requests, step)

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        return self._call("tier", requests, step)

    @override
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray | None:
        return self._call("keep_benefit", running, step)

    @override
    def admissible(self, waiting: Requests, step: Step) -> BoolArray | None:
        return self._call("admissible", waiting, step)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        if "rank" in self._patches:
            return self._call("rank", waiting, step)
        return super().rank(waiting, step)

    @override
    def limits(self, step: Step) -> Limits:
        return self._call("limits", step)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._call("on_arrived", rows, step)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        self._call("on_admitted", rows, step)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._call("on_computed", rows, work, step)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._call("on_preempted", rows, step)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self._call("on_finished", rows, step)
