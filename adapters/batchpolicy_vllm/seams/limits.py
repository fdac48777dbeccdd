"""How much runs at once, and what may be changed while serving."""

from __future__ import annotations

from typing import Any

from batchpolicy.policy import Limits
from batchpolicy_vllm.seams.names import SchedulerConfig

_OUR_LIMIT = "_batchpolicy_max_running"


def max_running(scheduler: Any) -> int:
    """Requests that may run at once.

    0.31 brought a limit of its own for admission. Before, there was only the size of the
    runner's buffers, which a step must never exceed: ours is kept beside it.
    """
    for name in ("max_num_active_reqs", _OUR_LIMIT):
        if hasattr(scheduler, name):
            return int(getattr(scheduler, name))
    return int(scheduler.max_num_running_reqs)


def set_limits(scheduler: Any, limits: Limits) -> None:
    """Limits from the next step on; the values at start are ceilings, which the runner keeps."""
    if limits.max_running is not None:
        has_own = hasattr(scheduler, "max_num_active_reqs")
        setattr(scheduler, "max_num_active_reqs" if has_own else _OUR_LIMIT, limits.max_running)
    if limits.token_budget is not None:
        scheduler.max_num_scheduled_tokens = limits.token_budget
    if limits.prefill_chunk is not None:
        scheduler.scheduler_config.long_prefill_token_threshold = limits.prefill_chunk


def keep_limits(scheduler: Any) -> None:
    """To be called when it is settled who runs, just before the engine schedules.

    Before 0.31 the engine asserts that no more run than its one limit says, even when the
    limit has just been lowered, and up to 0.20 admits unless exactly so many run.
    """
    if hasattr(scheduler, _OUR_LIMIT):
        scheduler.max_num_running_reqs = max(max_running(scheduler), len(scheduler.running))


def free_seats(scheduler: Any) -> int:
    """Requests that may start in this step."""
    taken = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
    return max_running(scheduler) - int(taken)


def max_loras(scheduler: Any) -> int | None:
    """LoRA adapters that may run at once; None where the engine has none."""
    config = scheduler.vllm_config.lora_config
    return None if config is None else int(config.max_loras)


def total_blocks(scheduler: Any) -> int:
    """KV blocks that requests can hold: all but the null block."""
    return int(scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1


def has_watermark() -> bool:
    """Whether the engine can be told to keep free blocks for running requests."""
    return "watermark" in SchedulerConfig.__dataclass_fields__


def watermark_blocks(scheduler: Any) -> int:
    """Free KV blocks that only running requests may take; none before there was a watermark."""
    return int(getattr(scheduler.kv_cache_manager, "watermark_blocks", 0))


def free_blocks(scheduler: Any) -> int:
    """KV blocks that admission may take: free ones but the watermark."""
    free = int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())
    return free - watermark_blocks(scheduler)
