"""The names of vLLM that the adapter imports; they are where they are from 0.20 to 0.33."""

from __future__ import annotations

from batchpolicy.errors import EngineUnavailable

SUPPORTED = "0.20 to 0.33"

try:
    from vllm import SamplingParams
    from vllm import __version__ as vllm_version
    from vllm.config import SchedulerConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.lora.request import LoRARequest
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.core.sched.request_queue import (
        FCFSRequestQueue,
        RequestQueue,
        SchedulingPolicy,
        create_request_queue,
    )
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager
except ImportError as e:
    raise EngineUnavailable(
        f"vLLM cannot be driven here: {e}. batchpolicy needs vLLM {SUPPORTED}: install it beside "
        "your vLLM (pip install batchpolicy), or without a GPU, in a checkout of batchpolicy: "
        "make .venv-vllm"
    ) from e

__all__ = [
    "SUPPORTED",
    "AsyncScheduler",
    "EngineArgs",
    "EngineCoreOutput",
    "EngineCoreOutputs",
    "FCFSRequestQueue",
    "FinishReason",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "LoRARequest",
    "ModelRunnerOutput",
    "PauseState",
    "Request",
    "RequestQueue",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "SchedulingPolicy",
    "StructuredOutputManager",
    "create_request_queue",
    "get_request_block_hasher",
    "init_none_hash",
    "sha256",
    "vllm_version",
]
