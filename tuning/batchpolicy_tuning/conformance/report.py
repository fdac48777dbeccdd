"""What a conformance run says, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from batchpolicy.engine import StepRecord
from batchpolicy_tuning.conformance.comparison import LIGHT, Compared, Difference
from batchpolicy_tuning.conformance.coverage import KINDS

SHOWN_DIFFERENCES = 5
_SHOWN_LEFT_OUT = 5


def lines(all_compared: Sequence[Compared], real: str, versions: str) -> Iterator[str]:
    """The report, line by line: what differs first, then what was compared."""
    unlike = [one for one in all_compared if one.difference is not None]
    for one in unlike[:SHOWN_DIFFERENCES]:
        yield from _difference_lines(one, real)
        yield ""
    if len(unlike) > SHOWN_DIFFERENCES:
        names = ", ".join(one.name for one in unlike[SHOWN_DIFFERENCES:][:20])
        yield f"... and {len(unlike) - SHOWN_DIFFERENCES} more differ: {names}"
        yield ""
    yield from _summary(all_compared, len(unlike), versions)


def _summary(all_compared: Sequence[Compared], unlike: int, versions: str) -> Iterator[str]:
    out = [one for one in all_compared if one.left_out]
    count = len(all_compared) - len(out)
    steps = sum(one.steps for one in all_compared if not one.left_out)
    if unlike:
        yield f"{unlike} of {count} workloads differ ({versions})."
    elif count:
        yield f"Equal on {count:,} workloads and {steps:,} steps ({versions}):"
        yield (
            "plans {request: tokens} in order, preemptions, refusals, free blocks and all times, "
            "bit for bit; also when nobody watches the steps."
        )
    else:
        yield f"Nothing was compared ({versions})."
    seen = Counter(kind for one in all_compared if not one.left_out for kind in one.covered)
    if count:
        yield "Workloads with"
        for kind in KINDS:
            yield f"  {kind:<26}{seen[kind]:>8,}"
    for one in out[:_SHOWN_LEFT_OUT]:
        yield f"left out: {one.name} under {one.policy}: {' '.join(one.left_out.split())}"
    if len(out) > _SHOWN_LEFT_OUT:
        yield f"... and {len(out) - _SHOWN_LEFT_OUT} more left out"


def _difference_lines(one: Compared, real: str) -> Iterator[str]:
    found = one.difference
    assert found is not None
    yield f"{one.name} under {one.policy}: {found.what}"
    if found.step is not None:
        yield from _side_by_side(found, real)
    for reason in found.reasons:
        yield f"  - {reason}"
    yield f"  again: batchpolicy conformance --engine {real} {one.again}"


def _side_by_side(found: Difference, real: str) -> Iterator[str]:
    mine, other = _said(found.ours), _said(found.theirs)
    wide = max(len(LIGHT), *(len(value) for value in mine.values()))
    yield f"  {'':<12}{LIGHT:<{wide}}  {real}"
    for name, value in mine.items():
        mark = "" if value == other[name] else "  <"
        yield f"  {name:<12}{value:<{wide}}  {other[name]}{mark}"
    yield f"  {'plan':<12}"
    for a, b in _paired(_plan(found.ours), _plan(found.theirs)):
        yield f"  {'':<12}{a:<{wide}}  {b}{'' if a == b else '  <'}"


def _plan(step: StepRecord | None) -> list[str]:
    return [] if step is None else [f"{i}: {tokens}" for i, tokens in step.tokens.items()]


def _paired(ours: list[str], theirs: list[str]) -> Iterator[tuple[str, str]]:
    for k in range(max(len(ours), len(theirs))):
        yield (ours[k] if k < len(ours) else "-"), (theirs[k] if k < len(theirs) else "-")


def _said(step: StepRecord | None) -> dict[str, str]:
    if step is None:
        return dict.fromkeys(
            ("start s", "takes s", "running", "waiting", "free blocks", "preempts"), "no step"
        )
    return {
        "start s": repr(step.start_s),
        "takes s": repr(step.duration_s),
        "running": str(step.running),
        "waiting": str(step.waiting),
        "free blocks": str(step.free_kv_blocks),
        "preempts": ", ".join(step.preempted) or "nobody",
    }


def document(
    all_compared: Sequence[Compared], real: str, versions: Sequence[str], seed: int
) -> dict[str, Any]:
    """The report as JSON."""
    compared = [one for one in all_compared if not one.left_out]
    return {
        "engine": real,
        "versions": list(versions),
        "seed": seed,
        "workloads": len(compared),
        "steps": sum(one.steps for one in compared),
        "equal": sum(one.difference is None for one in compared),
        "covered": {kind: sum(kind in one.covered for one in compared) for kind in KINDS},
        "left_out": [
            {"name": one.name, "policy": one.policy, "why": one.left_out}
            for one in all_compared
            if one.left_out
        ],
        "differences": [
            _difference_document(one, one.difference)
            for one in compared
            if one.difference is not None
        ],
    }


def _difference_document(one: Compared, found: Difference) -> dict[str, Any]:
    return {
        "name": one.name,
        "policy": one.policy,
        "again": one.again,
        "what": found.what,
        "reasons": list(found.reasons),
        "step": found.step,
        "light": _step_document(found.ours),
        "real": _step_document(found.theirs),
    }


def _step_document(step: StepRecord | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {
        "index": step.index,
        "start_s": step.start_s,
        "duration_s": step.duration_s,
        "tokens": dict(step.tokens),
        "preempted": list(step.preempted),
        "running": step.running,
        "waiting": step.waiting,
        "free_kv_blocks": step.free_kv_blocks,
    }
