"""A policy around another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer
from typing_extensions import override

from batchpolicy.policies.fcfs import FCFS
from batchpolicy.policy import CodeKind, Limits, Policy, Ranking, Step, Tags, Work, has_hooks
from batchpolicy.registry import build_policy, dump_policy
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests

Inner = Annotated[Policy, BeforeValidator(build_policy), PlainSerializer(dump_policy)]
"""A policy as a parameter: in a file its name, or a mapping with name and parameters."""


class Wrapper(Policy):
    """Changes the answers of the policy inside, and hands everything on to it.

    A subclass overrides what it changes, starting from ``super()``. It asks ``inner`` about
    a row once at most in each call of its own, so that a queue is scored once however deep
    the policies stand in each other. What ``inner`` holds back stays held back, what it
    refuses is refused, the tighter limit holds, and of two times to wake the earlier one.
    One that holds several policies says so in ``inside``, and in ``asked`` whose turn it is.

    ``tags`` of a class are its own; those of an object add what ``inner`` requires, that
    some request may starve if it may in either, and that displacement is by benefit if it
    is in either.
    """

    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Parameters under which the answers are those of ``inner``, for the checks; or None."""

    inner: Inner = Field(default_factory=FCFS)
    """The policy inside: a name, or a mapping with its name and parameters."""

    def inside(self) -> tuple[Policy, ...]:
        """All policies inside: each is told of everything that happens."""
        return (self.inner,)

    def asked(self) -> Policy:
        """The one of them that is asked now."""
        return self.inner

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        own = cls.__dict__.get("tags")
        if isinstance(own, Tags):
            cls.tags = cast(Tags, _TagsOfBoth(own))

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return self.asked().benefit(requests, step)

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        return self.asked().tier(requests, step)

    @override
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray | None:
        return self.asked().keep_benefit(running, step)

    @override
    def admissible(self, waiting: Requests, step: Step) -> BoolArray | None:
        return self.asked().admissible(waiting, step)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return self.asked().rank(waiting, step)

    @override
    def limits(self, step: Step) -> Limits:
        return self.asked().limits(step)

    @override
    def overrides(self, method: str) -> bool:
        own = getattr(type(self), method) is not getattr(Wrapper, method)
        return own or any(one.overrides(method) for one in self.inside())

    @override
    def native_order(self) -> str | None:
        return None

    @override
    def tenant_weights(self) -> Mapping[str, float]:
        return {k: v for one in self.inside() for k, v in one.tenant_weights().items()}

    @override
    def count_in(self, counters: Counter[str]) -> None:
        for one in self.inside():
            one.count_in(counters)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        for one in self.inside():
            one.on_arrived(rows, step)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        for one in self.inside():
            one.on_admitted(rows, step)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        for one in self.inside():
            one.on_computed(rows, work, step)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        for one in self.inside():
            one.on_preempted(rows, step)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        for one in self.inside():
            one.on_finished(rows, step)

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        if has_hooks(type(self), Wrapper):
            # State of its own, of which it does not say what can go.
            return np.full(len(codes), False)
        return self.forget_inside(codes, kind)

    def forget_inside(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        """Which of the codes no policy inside remembers any more, shape ``(n,)``."""
        gone = np.full(len(codes), True)
        for one in self.inside():
            gone[gone] = one.forget(codes[gone], kind)
        return gone


class _TagsOfBoth:
    """The tags of a wrapper class, and of an object those of its inner policy too."""

    def __init__(self, own: Tags) -> None:
        self._own = own

    def __get__(self, policy: Wrapper | None, cls: type[Wrapper]) -> Tags:
        if policy is None:
            return self._own
        both = (self._own, *(one.tags for one in policy.inside()))
        return Tags(
            requires=frozenset[str]().union(*(one.requires for one in both)),
            may_starve=any(one.may_starve for one in both),
            preempts="benefit" if any(one.preempts == "benefit" for one in both) else "class",
        )


# Not in the class body, where the base class's tags are a plain value.
Wrapper.tags = cast(Tags, _TagsOfBoth(Tags()))
