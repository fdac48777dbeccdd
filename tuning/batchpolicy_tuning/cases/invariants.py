"""What holds in every run, whatever the policy; found from step plans, not from the engine."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from batchpolicy.engine import Run
from batchpolicy.workload import Workload
from batchpolicy_tuning.cases.intervals import blocks, fits_alone, gaps, present_s
from batchpolicy_tuning.cases.outcome import Failure
from batchpolicy_tuning.cases.states import END_STATES
from batchpolicy_tuning.cases.trace import TOLERANCE_S, Trace, Work

PROGRESS_S = 5.0
"""Time in which something new must be computed."""


def limits_hold(trace: Trace) -> Iterator[str]:
    """I1: the engine's limits, in every step."""
    limits, courses = trace.limits, trace.courses
    for work in trace.works:
        at = f"in step {work.index} at {work.start_s:g} s"
        tokens = sum(work.tokens.values())
        if tokens > limits.max_num_batched_tokens:
            yield f"{tokens} tokens of {limits.max_num_batched_tokens} {at}"
        if len(work.held) > limits.max_num_seqs:
            yield f"{len(work.held)} running requests of {limits.max_num_seqs} {at}"
        held = _blocks_held(trace, work)
        if held > limits.kv_blocks:
            yield f"{held} KV blocks of {limits.kv_blocks} {at}"
        loras = {courses[i].request.lora for i in work.held} - {""}
        if limits.max_loras is not None and len(loras) > limits.max_loras:
            yield f"{len(loras)} adapters of {limits.max_loras} {at}"
        if limits.max_waiting is not None and work.waiting > limits.max_waiting:
            yield f"{work.waiting} waiting requests of {limits.max_waiting} {at}"
        encoding = sum(courses[i].request.encoder_tokens for i in work.prefilling)
        if limits.encoder_cache_tokens is not None and encoding > limits.encoder_cache_tokens:
            yield f"{encoding} encoder tokens of {limits.encoder_cache_tokens} {at}"
        if not limits.chunked_prefill:
            for i in work.tokens:
                if work.held.get(i, 0) < courses[i].request.prompt_tokens:
                    yield f"a part of the prompt of {i!r} {at}"


def _blocks_held(trace: Trace, work: Work) -> int:
    """KV blocks of the running requests, those of a shared prefix counted once."""
    block = trace.limits.kv_block_tokens
    total = 0
    shared: dict[tuple[str, str], int] = defaultdict(int)
    for i, tokens in work.held.items():
        r = trace.courses[i].request
        held = blocks(tokens, block)
        common = 0
        if trace.limits.prefix_cache:
            if r.prefix_id:
                common = min(tokens, r.prefix_tokens) // block
            elif r.session or r.prefix_blocks:
                # How much of it is shared is not known here, so that none of it is charged.
                common = held
        group = (r.lora, r.prefix_id)
        shared[group] = max(shared[group], common if r.prefix_id else 0)
        total += held - common
    return total + sum(shared.values())


def tokens_once(trace: Trace) -> Iterator[str]:
    """I2: a finished request has emitted each of its tokens, once."""
    yield from (text for name, text in trace.faults if name == "I2")
    for i, course in trace.courses.items():
        if course.guessed:
            continue
        said, emitted = int(trace.run.output_tokens[course.place]), len(course.token_s)
        if course.state == "finished" and emitted != course.wanted:
            yield f"{i!r} finished with {emitted} of {course.wanted} tokens"
        if said != emitted:
            yield f"{i!r} emitted {emitted} tokens and the run says {said}"


def one_state(trace: Trace) -> Iterator[str]:
    """I3: every request is in one state at any time, and the run says the same."""
    yield from (text for name, text in trace.faults if name == "I3")
    run = trace.run
    for i, course in trace.courses.items():
        ended = course.state in END_STATES.values()
        if ended == math.isnan(course.end_s):
            yield f"{i!r} is {course.state} with its end at {course.end_s:g} s"
        elif ended and course.end_s < course.arrival_s - TOLERANCE_S:
            yield f"{i!r} ended at {course.end_s:g} s, before it came at {course.arrival_s:g} s"
        if course.guessed:
            continue
        last_s = course.token_s[-1] if course.token_s else math.nan
        if course.state == "finished" and not _same(course.end_s, last_s):
            yield f"{i!r} finished at {course.end_s:g} s, its last token came at {last_s:g} s"
        pairs = (
            ("first_scheduled_s", course.first_scheduled_s),
            ("first_token_s", course.first_token_s),
            ("longest_gap_s", course.longest_gap_s),
            ("preemptions", course.preemptions),
            # What a prefix cache keeps of a preempted request does not stand in the plans.
            *([] if trace.limits.prefix_cache else [("recomputed_tokens", course.recomputed)]),
        )
        for name, found in pairs:
            said = float(getattr(run, name)[course.place])
            if not _same(said, found):
                yield f"{name} of {i!r} is {found:g} by the steps and {said:g} by the run"


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-6 or (math.isnan(a) and math.isnan(b))


def never_idle(trace: Trace) -> Iterator[str]:
    """I4: no time without work while a request waits that is ready and fits."""
    limits = trace.limits
    for start_s, end_s, before in gaps(trace, lambda work: bool(work.tokens)):
        ran: Mapping[str, int] = before.held if before else dict[str, int]()
        held = {
            i: tokens
            for i, tokens in ran.items()
            if present_s(trace.courses[i], start_s, end_s) > TOLERANCE_S
        }
        free = limits.kv_blocks - sum(
            blocks(tokens, limits.kv_block_tokens) for tokens in held.values()
        )
        for i, course in trace.courses.items():
            room = blocks(course.request.prompt_tokens, limits.kv_block_tokens) <= free
            free_seat = len(held) < limits.max_num_seqs
            if i not in held and not (room and free_seat and fits_alone(course, trace)):
                continue
            if present_s(course, start_s, end_s) > TOLERANCE_S:
                yield f"nothing runs from {start_s:g} to {end_s:g} s although {i!r} could"
                break


def progress(trace: Trace) -> Iterator[str]:
    """I5: something new in any 5 s while there is work, and an end."""
    for start_s, end_s, _ in gaps(trace, lambda work: work.fresh):
        for i, course in trace.courses.items():
            if fits_alone(course, trace) and present_s(course, start_s, end_s) > PROGRESS_S:
                yield f"nothing new from {start_s:g} to {end_s:g} s although {i!r} is there"
                break
    for i, course in trace.courses.items():
        if course.state not in END_STATES.values():
            yield f"{i!r} has not ended"


def memory_returned(trace: Trace) -> Iterator[str]:
    """I6: at the end no request holds KV, and on the way no block is lost."""
    for i, course in trace.courses.items():
        if course.running and math.isnan(course.end_s):
            yield f"{i!r} holds {course.computed} tokens at the end"
    block, total = trace.limits.kv_block_tokens, trace.limits.kv_blocks
    for work in trace.works:
        held = sum(blocks(tokens, block) for tokens in work.held.values())
        if not work.guessed and work.free_kv_blocks + held < total:
            lost = total - held - work.free_kv_blocks
            yield f"{lost} of {total} KV blocks are nobody's in step {work.index}"
            return


INVARIANTS: Mapping[str, tuple[str, Callable[[Trace], Iterator[str]]]] = {
    "I1": ("the engine's limits hold in every step", limits_hold),
    "I2": ("finished requests have emitted each of their tokens once", tokens_once),
    "I3": ("every request is in one state at any time", one_state),
    "I4": ("the engine is never idle while a request waits that fits", never_idle),
    "I5": ("something new is computed in any 5 s, and the run ends", progress),
    "I6": ("no request holds KV at the end", memory_returned),
}
"""Invariants of one run; I7 compares two, and I8 what went in with what came out."""


def same_twice(first: Trace, second: Trace) -> Iterator[str]:
    """I7: the same case gives the same schedule."""
    a, b = first.records, second.records
    for one, other in zip(a, b, strict=False):
        if _plan(one) != _plan(other):
            yield f"step {one.index} differs: {_told(one)} and then {_told(other)}"
            return
    if len(a) != len(b):
        yield f"{len(a)} steps and then {len(b)}"
    elif first.run.digest() != second.run.digest():
        yield "equal steps with other results"


def _plan(record: object) -> tuple[object, ...]:
    names = ("start_s", "duration_s", "tokens", "preempted", "running", "waiting")
    return tuple(getattr(record, name) for name in names)


def _told(record: object) -> str:
    start_s, _, tokens, preempted, *_ = _plan(record)
    return f"{tokens} at {start_s} s, preempted {preempted}"


def facts_kept(workload: Workload, digest: str, run: Run) -> Iterator[str]:
    """I8: requests come out as they went in; ``digest`` was taken before."""
    if workload.digest() != digest:
        yield "the workload was changed"
    came_out = run.workload.requests
    if len(came_out) != len(workload.requests):
        yield f"{len(workload.requests)} requests went in and {len(came_out)} came out"
    for before, after in zip(workload.requests, came_out, strict=False):
        # When a follower comes is for the run to say.
        known = replace(after, arrival_s=before.arrival_s) if before.arrival_after else after
        if repr(known) != repr(before):
            yield f"{before.id!r} went in as {before} and came out as {after}"


def failures(name: str, expected: str, found: Iterator[str], shown: int = 3) -> list[Failure]:
    """One failure for all that violates an invariant, its first cases named; none if it holds."""
    texts = list(found)
    if not texts:
        return []
    more = f"; {len(texts) - shown} more" if len(texts) > shown else ""
    return [Failure(name, expected, "; ".join(texts[:shown]) + more)]
