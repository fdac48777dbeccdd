"""SGLang's batches: what a step computes, and one turn of its loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import signature
from typing import Any

from batchpolicy_sglang.seams import upstream


def schedule(scheduler: Any) -> Any:
    """The batch of the next step, None for none."""
    if is_told(scheduler, "get_next_batch_to_run", "running_batch"):
        plan = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        scheduler.running_batch = plan.running_batch
        scheduler.cur_batch_for_debug = plan.batch_to_run
        return plan.batch_to_run
    # Before 0.5.16.
    scheduler.cur_batch = scheduler.get_next_batch_to_run()
    return scheduler.cur_batch


def is_told(scheduler: Any, method: str, what: str) -> bool:
    """Whether a method of a scheduler's class takes an argument of that name."""
    kind: Any = scheduler.__class__
    return _takes(kind, method, what)


@cache
def _takes(kind: Any, method: str, what: str) -> bool:
    found = getattr(kind, method, None)
    return found is not None and what in signature(found).parameters


def batch_of(plan: Any) -> Any:
    """The batch of the next step, None for none; before 0.5.16 the plan is the batch."""
    return plan.batch_to_run if hasattr(plan, "batch_to_run") else plan


def run(scheduler: Any, batch: Any, end_s: float, take: Callable[[Any, Any, float], None]) -> None:
    """Run a batch, and hand over the results that are due: those of the step before, with overlap.

    The rest of a turn of ``event_loop_normal`` or ``event_loop_overlap``.
    """
    if not scheduler.enable_overlap:
        if batch is not None:
            take(batch, scheduler.run_batch(batch), end_s)
        scheduler.last_batch = batch
        return
    last = scheduler.last_batch
    told = is_told(scheduler, "is_disable_overlap_for_batch", "last_batch")
    more = {"last_batch": last} if told else {}
    at_once = scheduler.is_disable_overlap_for_batch(batch, **more)
    if at_once:
        _take_oldest(scheduler, take)
    if batch is not None:
        result = scheduler.run_batch(batch)
        result.batchpolicy_end_s = end_s
        # The copy forgets whose chunk it was.
        result.batchpolicy_midway = batch.chunked_req if batch.forward_mode.is_extend() else None
        scheduler.result_queue.append((batch.copy(), result))
    if last is not None and not at_once:
        _take_oldest(scheduler, take)
    scheduler.last_batch = batch


def _take_oldest(scheduler: Any, take: Callable[[Any, Any, float], None]) -> None:
    batch, result = scheduler.result_queue.popleft()
    take(batch, result, result.batchpolicy_end_s)


def prefills(batch: Any) -> Iterator[tuple[Any, int, int]]:
    """Of a batch that prefills: each request, its tokens in KV before, and those computed."""
    return zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)


def tokens(batch: Any) -> dict[str, int]:
    """Tokens that a step computes of each request, in SGLang's order."""
    if not batch.forward_mode.is_extend():
        return {req.rid: 1 for req in batch.reqs}
    return {req.rid: n for req, _, n in prefills(batch)}


def context_of_decodes(batch: Any) -> int:
    """Tokens in KV of all requests of a batch that decodes, before the step."""
    # What they are after the step has been written already.
    return int(batch.seq_lens_cpu.sum()) - len(batch.reqs)


def running(scheduler: Any, batch: Any) -> int:
    """Requests with a seat while a batch runs."""
    others = len(scheduler.running_batch.reqs)
    if batch is None or batch is scheduler.running_batch:
        # A prompt that is midway sits out a step of decodes.
        return others + (scheduler.chunked_req is not None)
    return others + len(batch.reqs)


def sees_ends_late(scheduler: Any) -> bool:
    """Whether it takes a turn of its own to see that all who ran have ended: before 0.5.23."""
    return not is_told(scheduler, "_should_defer_prefill", "running_batch")


def held_seats(scheduler: Any) -> int:
    """Seats of the running batch, those of requests included that have ended unseen."""
    return len(scheduler.running_batch.reqs)


def in_flight(scheduler: Any) -> set[str]:
    """Requests of which a token is computed and not yet seen, with overlap."""
    return {
        req.rid
        for batch, result in scheduler.result_queue
        for req in batch.reqs
        if req is not result.batchpolicy_midway
    }


def free_tokens(scheduler: Any) -> int:
    """KV of that many tokens is free, or only cached."""
    free = scheduler.token_to_kv_pool_allocator.available_size()
    return int(free + scheduler.tree_cache.evictable_size())


def no_batch(running_batch: Any) -> Any:
    """What a prefill pass gives that starts nobody."""
    return upstream.schedule_batch().NextBatchPlan(batch_to_run=None, running_batch=running_batch)


def must_prefill(scheduler: Any) -> bool:
    """A prompt is midway, or waits for a grammar that may be there now."""
    if scheduler.chunked_req is not None:
        return True
    return bool(scheduler.grammar_manager.has_waiting_grammars())


def is_short(scheduler: Any, running_batch: Any) -> bool:
    """KV is short for the next decodes, and a prompt that is midway holds some.

    SGLang would then retract all running requests and end the last of them.
    """
    return scheduler.chunked_req is not None and not running_batch.check_decode_mem()


def live(batch: Any) -> list[Any]:
    """Requests of a batch that have not ended and still hold a seat."""
    return [req for req in batch.reqs if req.finished_reason is None and not req.is_retracted]


def tokens_of(req: Any) -> int:
    """Tokens of a request's prompt, and of what it has put out."""
    return len(req.origin_input_ids) + len(req.output_ids)


def correct_pending(batch: Any, unseen: int) -> None:
    """Let a batch's statistics count prompts too that wait where SGLang has not seen them."""
    stats = getattr(batch, "prefill_stats", None)
    if stats is not None and hasattr(stats, "num_pending_tokens"):
        stats.num_pending_tokens += unseen


def seated(scheduler: Any) -> list[Any]:
    """Requests that hold a seat."""
    return [req for req in in_batches(scheduler) if not req.finished()]


def in_batches(scheduler: Any) -> Iterable[Any]:
    """Requests of the batch that runs and of the last one, each once."""
    collect = getattr(scheduler, "collect_inflight_reqs", None)
    if collect is not None:
        inflight: Iterable[Any] = collect()
        return inflight
    # Before 0.5.20, which we serve on one rank.
    batches = (scheduler.running_batch, scheduler.last_batch)
    found = {id(req): req for batch in batches if batch is not None for req in batch.reqs}
    return found.values()
