"""Promises of policies around other policies."""

from __future__ import annotations

import numpy as np
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policy import Limits, Policy, Ranking, Step, Work
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests
from batchpolicy.runner.order import best_first
from batchpolicy.testing.compare import copy_of, experienced, fail, scene, work_of
from batchpolicy.wrappers import Wrapper

_HOOKS = ("on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished")
_LIMITS = (3, 64, 16)


class _Spy(Policy):
    """Stands inside a wrapper in another policy's place, and notes what it is asked and told."""

    _policy: Policy = PrivateAttr()
    _calls: list[tuple[str, IntArray]] = PrivateAttr(default_factory=list[tuple[str, IntArray]])
    _works: list[Work] = PrivateAttr(default_factory=list[Work])

    @classmethod
    def inside(cls, wrapper: Wrapper) -> tuple[Wrapper, _Spy]:
        """A copy of a wrapper with a spy inside."""
        spy = cls()
        spy._policy = copy_of(wrapper.inner)
        return wrapper.model_copy(update={"inner": spy}, deep=True), spy

    def rows(self, *names: str) -> list[int]:
        """Submission numbers of the rows in all calls of these names since ``note_anew``."""
        return [n for name, seqs in self._calls if name in names for n in seqs.tolist()]

    def note_anew(self) -> None:
        """Note anew from here on."""
        self._calls.clear()

    def work(self) -> Work:
        """All work told, in the order of its rows."""
        prefill, output, _, _ = zip(*self._works, strict=True)
        return Work(np.concatenate(prefill), np.concatenate(output), 0, 0.0)

    def _note(self, name: str, rows: Requests) -> None:
        self._calls.append((name, rows.seq))

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        self._note("benefit", requests)
        return self._policy.benefit(requests, step)

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        self._note("tier", requests)
        return self._policy.tier(requests, step)

    @override
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray | None:
        self._note("keep_benefit", running)
        return self._policy.keep_benefit(running, step)

    @override
    def admissible(self, waiting: Requests, step: Step) -> BoolArray | None:
        self._note("admissible", waiting)
        return self._policy.admissible(waiting, step)

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        self._note("rank", waiting)
        return self._policy.rank(waiting, step)

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._note("on_arrived", rows)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        self._note("on_admitted", rows)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._note("on_computed", rows)
        self._works.append(work)

    @override
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._note("on_preempted", rows)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self._note("on_finished", rows)


class _Choosy(_Spy):
    """Holds some back for a second, refuses others, and sets limits."""

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return Ranking(
            np.zeros(len(waiting)),
            admissible=waiting.seq % 2 == 0,
            refuse=waiting.seq % 5 == 0,
            wake_s=step.now_s + 1.0,
        )

    @override
    def limits(self, step: Step) -> Limits:
        return Limits(*_LIMITS)


def check_inner_is_asked_about_a_row_once(policy: Policy) -> None:
    """In each call, so that a queue is scored once however deep policies stand in each other."""
    assert isinstance(policy, Wrapper)
    at = scene()
    wrapper, spy = _Spy.inside(policy)
    wrapper.on_arrived(at.table.view(), at.step)
    for method, rows in (
        ("benefit", at.running),
        ("tier", at.running),
        ("keep_benefit", at.running),
        ("admissible", at.waiting),
        ("rank", at.waiting),
    ):
        getattr(wrapper, method)(rows, at.step)
        # A ranking is a benefit, a tier and a mask as well.
        for names in (
            ("benefit", "rank"),
            ("tier", "rank"),
            ("admissible", "rank"),
            ("keep_benefit",),
        ):
            asked = spy.rows(*names)
            if len(set(asked)) < len(asked):
                fail(policy, method, "asks inner about a row more than once")
        spy.note_anew()


def check_hooks_reach_inner(policy: Policy) -> None:
    """Each hook tells ``inner`` of each of its rows once, with the same work."""
    assert isinstance(policy, Wrapper)
    at = scene()
    wrapper, spy = _Spy.inside(policy)
    work = work_of(at.running)
    wrapper.on_arrived(at.table.view(), at.step)
    wrapper.on_admitted(at.running, at.step)
    wrapper.on_computed(at.running, work, at.step)
    wrapper.on_preempted(at.running, at.step)
    wrapper.on_finished(at.running, at.step)
    for hook in _HOOKS:
        expected = at.table.view() if hook == "on_arrived" else at.running
        told = spy.rows(hook)
        if sorted(told) != sorted(expected.seq.tolist()):
            fail(policy, hook, f"tells inner of {len(told)} rows, expected {len(expected)}")
        if hook == "on_computed":
            tokens = dict(zip(told, spy.work().output_tokens.tolist(), strict=True))
            if [tokens[n] for n in at.running.seq.tolist()] != work.output_tokens.tolist():
                fail(policy, hook, "tells inner of other work than it is told of")


def check_inner_has_its_say(policy: Policy) -> None:
    """What ``inner`` holds or refuses stays so; its limits and its time to wake hold as well."""
    assert isinstance(policy, Wrapper)
    at = scene()
    wrapper, spy = _Choosy.inside(policy)
    wrapper.on_arrived(at.table.view(), at.step)
    wanted = spy.rank(at.waiting, at.step)
    got = wrapper.rank(at.waiting, at.step)
    if got.admissible is None or (got.admissible & ~_mask(wanted.admissible)).any():
        fail(policy, "rank", "lets a request start that inner holds back")
    if got.refuse is None or (~got.refuse & _mask(wanted.refuse)).any():
        fail(policy, "rank", "keeps a request that inner refuses")
    if got.wake_s > wanted.wake_s:
        fail(policy, "rank", f"wakes at {got.wake_s}, inner at {wanted.wake_s}")
    for name, mine, theirs in zip(Limits._fields, wrapper.limits(at.step), _LIMITS, strict=True):
        if mine is None or mine > theirs:
            fail(policy, "limits", f"has {name} {mine}, inner {theirs}")


def check_neutral_parameters_change_nothing(policy: Policy) -> None:
    """Under ``neutral`` parameters the order, and who may start, are those of ``inner``."""
    assert isinstance(policy, Wrapper)
    parameters = policy.model_dump(mode="json", by_alias=True)
    neutral = type(policy).model_validate({**parameters, **(policy.neutral or {})})
    at = scene()
    asked: list[tuple[list[int], float, Limits]] = []
    for one in (neutral, neutral.inner):
        lived = experienced(one, at)
        got = lived.rank(at.waiting, at.step)
        asked.append((_order(got, at.waiting), got.wake_s, lived.limits(at.step)))
    if asked[0] != asked[1]:
        fail(policy, "rank", f"differs from inner's under {policy.neutral}")


def _mask(given: BoolArray | None) -> BoolArray:
    assert given is not None
    return given


def _order(ranking: Ranking, rows: Requests) -> list[int]:
    """Submission numbers of the rows that may start, in order."""
    n = len(rows)
    opened = np.ones(n, dtype=np.bool_) if ranking.admissible is None else ranking.admissible
    if ranking.refuse is not None:
        opened = opened & ~ranking.refuse
    found = best_first(ranking.benefit, ranking.tier, rows.seq, n)
    order: list[int] = rows.seq[found[opened[found]]].tolist()
    return order
