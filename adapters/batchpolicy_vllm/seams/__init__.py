"""Everything of vLLM that the adapter touches, and nothing else does.

Read by hand in vLLM 0.20, 0.25, 0.30, 0.31, 0.32 and 0.33. Where they differ, what is
there decides and not the version's number; what is missing is told at start, by name.
``Any`` stands for engine objects and stays in this package.
"""

from __future__ import annotations

import logging
from typing import Any

from batchpolicy_vllm.seams.kv_probe import KvProbe
from batchpolicy_vllm.seams.limits import (
    free_blocks,
    free_seats,
    has_watermark,
    keep_limits,
    max_loras,
    max_running,
    set_limits,
    total_blocks,
    watermark_blocks,
)
from batchpolicy_vllm.seams.names import (
    AsyncScheduler,
    EngineArgs,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    LoRARequest,
    ModelRunnerOutput,
    Request,
    RequestQueue,
    RequestStatus,
    SamplingParams,
    Scheduler,
    StructuredOutputManager,
    get_request_block_hasher,
    init_none_hash,
    sha256,
    vllm_version,
)
from batchpolicy_vllm.seams.outputs import (
    add_output,
    admitted,
    end_status,
    ended,
    ended_ids,
    has_started,
    how_ended,
    refusal,
    rejected,
    result_count,
    results,
    tell_preempted,
)
from batchpolicy_vllm.seams.probes import check_class, check_scheduler, refuse_ranks_of_one_mind
from batchpolicy_vllm.seams.queues import (
    admits,
    awaits_output,
    end,
    goes_on,
    holding,
    is_blocked,
    preempt,
    unblock,
    use_native_order,
    use_queue,
)

__all__ = [
    "AsyncScheduler",
    "EngineArgs",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KvProbe",
    "LoRARequest",
    "ModelRunnerOutput",
    "Request",
    "RequestQueue",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "StructuredOutputManager",
    "add_output",
    "additional_config",
    "admits",
    "admitted",
    "awaits_output",
    "check_class",
    "check_scheduler",
    "end",
    "end_status",
    "ended",
    "ended_ids",
    "free_blocks",
    "free_seats",
    "get_request_block_hasher",
    "goes_on",
    "has_started",
    "has_watermark",
    "holding",
    "how_ended",
    "init_none_hash",
    "is_blocked",
    "keep_limits",
    "max_loras",
    "max_running",
    "preempt",
    "refusal",
    "refuse_ranks_of_one_mind",
    "rejected",
    "result_count",
    "results",
    "set_limits",
    "sha256",
    "share_log",
    "tell_preempted",
    "total_blocks",
    "unblock",
    "use_native_order",
    "use_queue",
    "vllm_version",
    "watermark_blocks",
]


def additional_config(scheduler: Any) -> Any:
    """What ``--additional-config`` gave."""
    return scheduler.vllm_config.additional_config


def share_log() -> None:
    """Let our lines appear among the engine's, unless logging is set up for ours already."""
    theirs = logging.getLogger("vllm")
    for name in ("batchpolicy", "batchpolicy_vllm"):
        ours = logging.getLogger(name)
        if not ours.hasHandlers():
            ours.handlers = theirs.handlers
            ours.setLevel(theirs.level)
