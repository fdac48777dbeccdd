"""How much runs at once, and what may be changed while serving."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from batchpolicy.policy import Limits
from batchpolicy_sglang.seams import upstream
from batchpolicy_sglang.seams.batches import is_told


def max_running(scheduler: Any) -> int:
    """Requests that may run at once, in all micro-batches of a pipeline."""
    return _cap_of_one(scheduler) * stages(scheduler)


def max_token_budget(scheduler: Any) -> int:
    """Prompt tokens that one step may compute."""
    chunk = scheduler.chunked_prefill_size
    most = int(scheduler.max_prefill_tokens)
    return most if chunk is None else min(int(chunk), most)


def set_limits(scheduler: Any, limits: Limits) -> None:
    """Limits from the next step on; the values at start are ceilings, which the runner keeps."""
    if limits.max_running is not None:
        each = max(limits.max_running // stages(scheduler), 1)
        if each != _cap_of_one(scheduler):
            _set_cap_of_one(scheduler, each)
    if limits.token_budget is not None:
        if scheduler.chunked_prefill_size is not None:
            page = int(scheduler.page_size)
            scheduler.chunked_prefill_size = max(limits.token_budget // page, 1) * page
        scheduler.max_prefill_tokens = limits.token_budget


def max_loras(scheduler: Any) -> int | None:
    """Adapters that may run at once, the base model being one; None without adapters."""
    return int(scheduler.max_loras_per_batch) if scheduler.enable_lora else None


def seat_counter(scheduler: Any) -> Callable[[Any], int]:
    """What counts the requests that may start beside a running batch, as SGLang will count."""
    native = scheduler.get_num_allocatable_reqs
    told_batch, told_rows = (
        is_told(scheduler, "get_num_allocatable_reqs", what)
        for what in ("running_batch", "num_held_rows")
    )

    def free_seats(running_batch: Any) -> int:
        running = len(running_batch.reqs)
        # A prompt that is midway goes on in the step, and is one of those that the count is of.
        midway = 0 if scheduler.chunked_req is None else 1
        # Also below 0: a cap that was lowered is one that others run beyond.
        beyond = running - _cap_of_one(scheduler)
        if beyond >= 0:
            # The usual case of a busy server, in which the whole count would tell the same.
            return -beyond - midway
        # Before 0.5.23 the row that it holds counts as taken, and it as one that needs a row.
        if told_rows:
            found = native(running, running_batch=running_batch, num_held_rows=midway)
        elif told_batch:
            found = native(running, running_batch=running_batch)
        else:
            found = native(running)
        return int(found) - midway

    return free_seats


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
    return int(_sizes(scheduler).tp_size) * stages(scheduler)


def is_leader() -> bool:
    """Whether this process receives the requests, and passes them on to the other ranks."""
    p = upstream.runtime_context().get_parallel()
    return bool(p.pp_rank == 0 and p.attn_tp_rank == 0 and getattr(p, "attn_cp_rank", 0) == 0)


def _cap_of_one(scheduler: Any) -> int:
    return int(_sizes(scheduler).pp_max_micro_batch_size or scheduler.max_running_requests)


def _set_cap_of_one(scheduler: Any, requests: int) -> None:
    if _context_has_sizes():
        context = upstream.runtime_context().get_context()
        context.override("batchpolicy", pp_max_micro_batch_size=requests)
    else:
        scheduler.server_args.pp_max_micro_batch_size = requests


def stages(scheduler: Any) -> int:
    """Stages of the pipeline."""
    return int(_sizes(scheduler).pp_size)


def _sizes(scheduler: Any) -> Any:
    """What knows ``tp_size``, ``pp_size`` and ``pp_max_micro_batch_size``."""
    if _context_has_sizes():
        return upstream.runtime_context().get_parallel()
    return scheduler.server_args


@cache
def _context_has_sizes() -> bool:
    """Since 0.5.17; before it SGLang reads the arguments of the server."""
    try:
        parallel = upstream.runtime_context().get_parallel()
    except ImportError:
        return False
    return hasattr(parallel, "pp_max_micro_batch_size")
