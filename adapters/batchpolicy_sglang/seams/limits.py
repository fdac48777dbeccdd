"""How much runs at once, and what may be changed while serving."""

from __future__ import annotations

from typing import Any

from batchpolicy.policy import Limits
from batchpolicy_sglang.seams import upstream


def max_running(scheduler: Any) -> int:
    """Requests that may run at once, in all micro-batches of a pipeline."""
    return _cap_of_one(scheduler) * _stages()


def max_token_budget(scheduler: Any) -> int:
    """Prompt tokens that one step may compute."""
    chunk = scheduler.chunked_prefill_size
    most = int(scheduler.max_prefill_tokens)
    return most if chunk is None else min(int(chunk), most)


def set_limits(scheduler: Any, limits: Limits) -> None:
    """Limits from the next step on; the values at start are ceilings, which the runner keeps."""
    if limits.max_running is not None:
        each = max(limits.max_running // _stages(), 1)
        if each != _cap_of_one(scheduler):
            _context().override("batchpolicy", pp_max_micro_batch_size=each)
    if limits.token_budget is not None:
        if scheduler.chunked_prefill_size is not None:
            page = int(scheduler.page_size)
            scheduler.chunked_prefill_size = max(limits.token_budget // page, 1) * page
        scheduler.max_prefill_tokens = limits.token_budget


def free_seats(scheduler: Any, running_batch: Any) -> int:
    """Requests that may start in this step."""
    taken = len(running_batch.reqs) + (scheduler.chunked_req is not None)
    rows = int(scheduler.req_to_token_pool.available_size())
    return min(_cap_of_one(scheduler) - taken, rows)


def total_blocks(scheduler: Any) -> int:
    """KV pages that requests can hold."""
    return int(scheduler.max_total_num_tokens) // int(scheduler.page_size)


def free_blocks(scheduler: Any) -> int:
    """KV pages that are free, or only cached.

    One less than there are: SGLang starts a request only if more is free than it needs.
    """
    free = scheduler.token_to_kv_pool_allocator.available_size()
    free += scheduler.tree_cache.evictable_size()
    return max(int(free) - 1, 0) // int(scheduler.page_size)


def ranks(scheduler: Any) -> int:
    """Processes that each run a scheduler and must all decide alike."""
    return int(_parallel().tp_size) * _stages()


def is_leader() -> bool:
    """Whether this process receives the requests, and passes them on to the other ranks."""
    p = _parallel()
    return bool(p.pp_rank == 0 and p.attn_tp_rank == 0 and getattr(p, "attn_cp_rank", 0) == 0)


def _cap_of_one(scheduler: Any) -> int:
    return int(_parallel().pp_max_micro_batch_size or scheduler.max_running_requests)


def _stages() -> int:
    return int(_parallel().pp_size)


def _parallel() -> Any:
    return upstream.runtime_context().get_parallel()


def _context() -> Any:
    return upstream.runtime_context().get_context()
