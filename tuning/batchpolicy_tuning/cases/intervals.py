"""Times in which nothing happens, and who could have run in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from batchpolicy_tuning.cases.trace import TOLERANCE_S, Course, Trace, Work


def gaps(
    trace: Trace, counts: Callable[[Work], bool]
) -> Iterator[tuple[float, float, Work | None]]:
    """Start and end of each time without a step that counts, and the step before it."""
    since_s, before = 0.0, None
    for work in trace.works:
        if counts(work):
            if work.start_s > since_s + TOLERANCE_S:
                yield since_s, work.start_s, before
            since_s, before = max(since_s, work.end_s), work
    if trace.end_s > since_s + TOLERANCE_S:
        yield since_s, trace.end_s, before


def present_s(course: Course, start_s: float, end_s: float) -> float:
    """How long of a time a request was there, could start and had not ended."""
    gone_s = math.inf if math.isnan(course.end_s) else course.end_s
    return min(end_s, gone_s) - max(start_s, course.ready_s)


def blocks(tokens: int, block: int) -> int:
    """Blocks of KV that hold so many tokens."""
    return -(-tokens // block)


def fits_alone(course: Course, trace: Trace) -> bool:
    """Whether the engine could run it if it had nothing else to do."""
    limits, r = trace.limits, course.request
    whole = r.prompt_tokens + len(course.token_s)
    return (
        blocks(whole, limits.kv_block_tokens) <= limits.kv_blocks
        and (limits.chunked_prefill or r.prompt_tokens <= limits.max_num_batched_tokens)
        and r.encoder_tokens <= (limits.encoder_cache_tokens or math.inf)
    )
