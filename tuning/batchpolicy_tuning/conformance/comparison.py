"""One workload on two engines, and what is not the same."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from batchpolicy import registry
from batchpolicy.engine import Engine, Run, StepRecord
from batchpolicy.errors import BatchPolicyError
from batchpolicy.requests import Status
from batchpolicy_tuning.conformance.coverage import covered
from batchpolicy_tuning.conformance.problem import Problem
from batchpolicy_tuning.conformance.steps import Steps, first_difference, reasons

LIGHT = "light"
LEFT_OVER = "a fresh engine does not differ: something of a workload before it was left over"
_COLUMNS = (
    "status", "first_scheduled_s", "first_token_s", "finished_s", "longest_gap_s",
    "output_tokens", "cached_tokens", "preemptions", "recomputed_tokens",
)  # fmt: skip
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which two engines are not the same."""

    what: str
    reasons: Sequence[str]
    step: int | None = None
    """Place of the step, None where all steps are the same and the end is not."""
    ours: StepRecord | None = None
    theirs: StepRecord | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """What came out for one workload."""

    name: str
    again: str
    policy: str
    steps: int
    covered: frozenset[str]
    difference: Difference | None = None
    left_out: str = ""
    """Why the workload says nothing, where an engine does not take it."""


@dataclass(frozen=True, slots=True)
class _Served:
    run: Run | None
    steps: Steps
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Compare:
    """Serves a workload on the light engine and on the one that it is called with."""

    make: Callable[[], Problem]
    """Makes the workload where it is served, so that thousands need no memory before."""

    def __call__(self, engine: Engine, /) -> Compared:
        """Serve it on both; where they differ, on a fresh engine too."""
        problem = self.make()
        if problem.drawn:
            problem = problem.without(engine.without | light_for(engine.name).without)
        found = _on(engine, problem)
        if found.difference is not None and _on(type(engine)(), problem).difference is None:
            said = [*found.difference.reasons, LEFT_OVER]
            found = replace(found, difference=replace(found.difference, reasons=said))
        return found


def _on(engine: Engine, problem: Problem) -> Compared:
    theirs = _serve(engine, problem)
    ours = _serve(light_for(engine.name), problem)
    real = "the other light" if engine.name == LIGHT else engine.name
    left_out, difference = "", None
    if _refused(theirs):
        who = "both engines refuse" if _refused(ours) else f"{real} refuses"
        left_out = f"{who} it: {theirs.error}"
    elif ours.error is None and theirs.error is None:
        difference = _difference(problem, ours, theirs, real)
    elif _gave_up_alike(ours, theirs):
        assert theirs.error is not None
        left_out = f"both give up after the same steps with {_told(theirs.error)}"
    else:
        difference = _one_gave_up(ours, theirs, real)
    return Compared(
        problem.name,
        problem.again,
        problem.policy,
        len(theirs.steps),
        frozenset() if theirs.run is None else covered(problem, theirs.run, theirs.steps),
        difference,
        left_out,
    )


def light_for(real: str) -> Engine:
    """The light engine that has to be like a real one: ``light-NAME``, or ``light``."""
    own = f"{LIGHT}-{real}"
    return registry.engine(own if own in registry.names(registry.ENGINES) else LIGHT)


def _serve(engine: Engine, problem: Problem) -> _Served:
    steps = Steps()
    try:
        run = engine.replay(
            problem.workload,
            problem.config,
            problem.limits,
            problem.cost,
            max_steps=problem.max_steps,
            observer=steps,
        )
    except Exception as error:
        # A fault of an engine is a finding, and no reason to leave out the other workloads.
        return _Served(None, steps, error)
    return _Served(run, steps, None)


def _refused(served: _Served) -> bool:
    """Was not taken at all, for what its requests or limits ask for."""
    return isinstance(served.error, BatchPolicyError) and not served.steps


def _gave_up_alike(ours: _Served, theirs: _Served) -> bool:
    same = type(ours.error) is type(theirs.error)
    return same and first_difference(ours.steps, theirs.steps) is None


def _one_gave_up(ours: _Served, theirs: _Served, real: str) -> Difference:
    said = [
        f"{name} ended with {_told(served.error)}"
        for name, served in ((LIGHT, ours), (real, theirs))
        if served.error is not None
    ]
    place = first_difference(ours.steps, theirs.steps)
    if place is None:
        return Difference("only one engine gives up, after the same steps", said)
    return _at_step(ours.steps, theirs.steps, place, real, said)


def _told(error: Exception) -> str:
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, BatchPolicyError):
        return said
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{said} ({at.filename}:{at.lineno})"


def _difference(problem: Problem, ours: _Served, theirs: _Served, real: str) -> Difference | None:
    mine, other = ours.run, theirs.run
    assert mine is not None
    assert other is not None
    place = first_difference(ours.steps, theirs.steps)
    if place is not None:
        return _at_step(ours.steps, theirs.steps, place, real, [])
    found = list(_at_the_end(problem, mine, other, real))
    if found:
        return Difference("all steps are the same, and the end is not", found)
    unwatched = light_for(real).replay(
        problem.workload,
        problem.config,
        problem.limits,
        problem.cost,
        max_steps=problem.max_steps,
    )
    if unwatched.digest() != mine.digest():
        found = list(_at_the_end(problem, unwatched, other, real))
        return Difference("light comes to another end when nobody watches its steps", found)
    return None


def _at_step(ours: Steps, theirs: Steps, place: int, real: str, said: Sequence[str]) -> Difference:
    def at(steps: Steps) -> StepRecord | None:
        return steps[place] if place < len(steps) else None

    mine, other = at(ours), at(theirs)
    one = mine or other
    assert one is not None
    return Difference(
        f"step {one.index} at {one.start_s:g} s is the first that differs",
        [*reasons(ours, theirs, place, real), *said],
        place,
        mine,
        other,
    )


def _at_the_end(problem: Problem, ours: Run, theirs: Run, real: str) -> Iterator[str]:
    ids = [r.id for r in problem.workload.requests]
    for name in _COLUMNS:
        pairs = zip(ids, getattr(ours, name).tolist(), getattr(theirs, name).tolist(), strict=True)
        unlike = [(i, a, b) for i, a, b in pairs if not _same(a, b)]
        for i, a, b in unlike[:_SHOWN]:
            yield f"{name} of {i}: {_shown(name, a)} on light, {_shown(name, b)} on {real}"
        if len(unlike) > _SHOWN:
            yield f"... and {name} of {len(unlike) - _SHOWN} more"
    for name in ("steps", "end_s", "peak_waiting"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            yield f"{name}: {a!r} on light, {b!r} on {real}"
    if not problem.native and dict(ours.counters) != dict(theirs.counters):
        yield f"counted by the runner: {dict(ours.counters)} on light"
        yield f"counted by the runner: {dict(theirs.counters)} on {real}"
    if ours.workload.digest() != theirs.workload.digest():
        yield "requests arrive at other times"


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _shown(column: str, value: Any) -> str:
    return Status(value).name.lower() if column == "status" else repr(value)
