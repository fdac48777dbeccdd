"""Checks of when things happen to requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise

from batchpolicy_tuning.cases.check_specs import (
    Before,
    Check,
    InOrder,
    MakespanMax,
    NothingAfterCancel,
    Plain,
    TimeMax,
    Within,
)
from batchpolicy_tuning.cases.judging import Evidence, listed, seconds, time_of
from batchpolicy_tuning.cases.outcome import Failure
from batchpolicy_tuning.cases.trace import TOLERANCE_S, Course


def _ttft_s(c: Course) -> float:
    return _or_left(c, c.first_token_s)


def _wait_s(c: Course) -> float:
    return _or_left(c, c.first_scheduled_s)


def _e2e_s(c: Course) -> float:
    return c.end_s - c.arrival_s


def _itl_s(c: Course) -> float:
    return c.longest_gap_s


def _or_left(course: Course, at_s: float) -> float:
    """Time from the arrival; of a client that left before, at least as long as it stayed."""
    if math.isnan(at_s) and course.state == "aborted":
        at_s = course.end_s
    return at_s - course.arrival_s


_SPANS: Mapping[str, Callable[[Course], float]] = {
    "ttft_max": _ttft_s,
    "wait_max": _wait_s,
    "e2e_max": _e2e_s,
    "itl_max": _itl_s,
}


def time_max(check: Check, evidence: Evidence) -> Failure | None:
    """Each request, or a percentile of them, took at most so long; never is too long."""
    assert isinstance(check, TimeMax)
    span = _SPANS[check.kind]
    took = {c.request.id: _never_is_inf(span(c)) for c in evidence.named(check.ids)}
    if check.percentile is not None:
        ranked = sorted(took.values())
        found_s = ranked[math.ceil(check.percentile / 100 * len(ranked)) - 1]
        if found_s <= check.max_s + TOLERANCE_S:
            return None
        expected = f"at most {check.max_s:g} s for {check.percentile:g}% of {len(ranked)}"
        return Failure(check.kind, expected, seconds(found_s))
    late = {i: s for i, s in took.items() if s > check.max_s + TOLERANCE_S}
    if not late:
        return None
    worst = sorted(late, key=lambda i: -late[i])
    return Failure(
        check.kind,
        f"at most {check.max_s:g} s",
        listed([f"{seconds(late[i])} ({i})" for i in worst]),
    )


def _never_is_inf(value: float) -> float:
    return math.inf if math.isnan(value) else value


def within(check: Check, evidence: Evidence) -> Failure | None:
    """The event lies between two times after the arrival."""
    assert isinstance(check, Within)
    after = {
        c.request.id: _never_is_inf(time_of(c, check.event) - c.arrival_s)
        for c in evidence.named(check.ids)
    }
    outside = [
        f"{seconds(s)} ({i})"
        for i, s in after.items()
        if math.isinf(s) or not check.min_s - TOLERANCE_S <= s <= check.max_s + TOLERANCE_S
    ]
    expected = f"{check.event} {check.min_s:g} to {check.max_s:g} s after arrival"
    return Failure(check.kind, expected, listed(outside)) if outside else None


def in_order(check: Check, evidence: Evidence) -> Failure | None:
    """The events come in the order in which the requests are named."""
    assert isinstance(check, InOrder)
    times = [(c.request.id, time_of(c, check.event)) for c in evidence.named(check.ids)]
    wrong = [f"{i} never" for i, at_s in times if math.isnan(at_s)]
    for (i, one_s), (k, next_s) in pairwise(times):
        if next_s < one_s - TOLERANCE_S:
            wrong.append(f"{k} at {next_s:g} s before {i} at {one_s:g} s")
    expected = f"{check.event} in the order listed"
    return Failure(check.kind, expected, listed(wrong)) if wrong else None


def before(check: Check, evidence: Evidence) -> Failure | None:
    """No event of the first is later than one of the others."""
    assert isinstance(check, Before)
    first, then = evidence.named(check.first), evidence.named(check.then)
    wrong = [
        f"{c.request.id} never" for c in [*first, *then] if math.isnan(time_of(c, check.event))
    ]
    for one in first:
        for other in then:
            one_s, other_s = time_of(one, check.event), time_of(other, check.event)
            if one_s > other_s + TOLERANCE_S:
                ids = (one.request.id, other.request.id)
                wrong.append(f"{ids[0]} at {one_s:g} s after {ids[1]} at {other_s:g} s")
    expected = f"{check.event} of {' '.join(check.first)} before {' '.join(check.then)}"
    return Failure(check.kind, expected, listed(wrong)) if wrong else None


def makespan_max(check: Check, evidence: Evidence) -> Failure | None:
    """The last request has ended by then."""
    assert isinstance(check, MakespanMax)
    ends = {c.request.id: _never_is_inf(c.end_s) for c in evidence.trace.courses.values()}
    last = max(ends, key=lambda i: ends[i])
    if ends[last] <= check.max_s + TOLERANCE_S:
        return None
    return Failure(check.kind, f"at most {check.max_s:g} s", f"{seconds(ends[last])} ({last})")


def submission_order(check: Check, evidence: Evidence) -> Failure | None:
    """Those that were scheduled were so in the order in which they came."""
    assert isinstance(check, Plain)
    started = [c for c in evidence.named(check.ids) if not math.isnan(c.first_scheduled_s)]
    started.sort(key=lambda c: (c.arrival_s, c.place))
    wrong = [
        f"{b.request.id} at {b.first_scheduled_s:g} s before {a.request.id} at "
        f"{a.first_scheduled_s:g} s"
        for a, b in pairwise(started)
        if b.first_scheduled_s < a.first_scheduled_s - TOLERANCE_S
    ]
    return Failure(check.kind, "order of submission", listed(wrong)) if wrong else None


def nothing_after_cancel(check: Check, evidence: Evidence) -> Failure | None:
    """No token came out after the client had left."""
    assert isinstance(check, NothingAfterCancel)
    wrong: list[str] = []
    for c in evidence.named(check.ids):
        last_s = c.token_s[-1] if c.token_s else -math.inf
        if last_s > c.request.cancel_at_s + check.slack_s + TOLERANCE_S:
            wrong.append(f"{last_s:g} s ({c.request.id}, cancelled {c.request.cancel_at_s:g} s)")
    expected = f"no token later than {check.slack_s:g} s after the cancellation"
    return Failure(check.kind, expected, listed(wrong)) if wrong else None
