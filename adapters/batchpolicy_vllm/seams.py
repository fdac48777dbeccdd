"""Everything of vLLM that the adapter touches, and nothing else does.

Read by hand in vLLM 0.32.0. What is missing in an installed version is told at
start, by name. ``Any`` stands for engine objects and stays in this package.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from batchpolicy.errors import EngineUnavailable
from batchpolicy.policy import Limits
from batchpolicy.requests import IntArray, Status

try:
    from vllm import SamplingParams
    from vllm import __version__ as vllm_version
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.core.sched.request_queue import (
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
        f"vLLM cannot be driven here: {e}. Install batchpolicy beside your vLLM "
        "(pip install batchpolicy), or without a GPU, in a checkout of batchpolicy: "
        "make .venv-vllm"
    ) from e

__all__ = [
    "AsyncScheduler",
    "EngineArgs",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "ModelRunnerOutput",
    "Request",
    "RequestQueue",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "StructuredOutputManager",
    "get_request_block_hasher",
    "init_none_hash",
    "sha256",
    "vllm_version",
]

_OURS = "batchpolicy: "
_FINISHED = (FinishReason.STOP, FinishReason.LENGTH)

_METHODS = (
    "schedule",
    "update_from_output",
    "add_request",
    "finish_requests",
    "_preempt_request",
    "_is_blocked_waiting_status",
    "_handle_blocked_waiting_request",
    "_request_blocks_can_be_freed",
)
_ATTRIBUTES = (
    "waiting",
    "kv_holding_waiting",
    "running",
    "requests",
    "policy",
    "pause_state",
    "max_num_running_reqs",
    "max_num_active_reqs",
    "max_num_scheduled_tokens",
    "num_waiting_for_streaming_input",
    "prev_step_scheduled_req_ids",
    "finished_req_ids",
    "scheduler_config",
    "vllm_config",
    "kv_cache_manager",
    "block_size",
    "num_lookahead_tokens",
    "num_spec_tokens",
)


def check_class(base: type) -> None:
    """Refuse a scheduler class that lacks what the adapter overrides or calls.

    Raises
    ------
    EngineUnavailable
        Naming what is missing and the version that was found.
    """
    _refuse_missing([name for name in _METHODS if not hasattr(base, name)])


def check_scheduler(scheduler: Any) -> None:
    """Refuse a scheduler that lacks what the adapter reads; see ``check_class``."""
    missing = [name for name in _ATTRIBUTES if not hasattr(scheduler, name)]
    manager = getattr(scheduler, "kv_cache_manager", None)
    missing += [
        f"kv_cache_manager.{name}"
        for name in ("block_pool", "watermark_blocks", "get_computed_blocks", "get_blocks")
        if manager is not None and not hasattr(manager, name)
    ]
    _refuse_missing(missing)


def _refuse_missing(missing: list[str]) -> None:
    if missing:
        raise EngineUnavailable(
            f"vLLM {vllm_version} cannot take a policy: its scheduler has no "
            f"{', '.join(missing)}. Tested with 0.32.0."
        )


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


def use_native_order(scheduler: Any, order: str) -> None:
    """Let the engine's own queue of that order stand, as if configured at start."""
    policy = SchedulingPolicy(order)
    if scheduler.policy != policy:
        scheduler.policy = policy
        scheduler.waiting = create_request_queue(policy)
        scheduler.kv_holding_waiting = create_request_queue(policy)


def use_queue(scheduler: Any, queue: RequestQueue) -> None:
    """Put our queue in place of the waiting one; the tail of ``running`` is the victim."""
    use_native_order(scheduler, "fcfs")
    scheduler.waiting = queue


def admits(scheduler: Any) -> bool:
    """The engine is not paused, so that waiting requests may start."""
    return bool(scheduler.pause_state == PauseState.UNPAUSED)


def free_seats(scheduler: Any) -> int:
    """Requests that may start in this step."""
    taken = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
    return int(scheduler.max_num_active_reqs) - int(taken)


def total_blocks(scheduler: Any) -> int:
    """KV blocks that requests can hold: all but the null block."""
    return int(scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1


def watermark_blocks(scheduler: Any) -> int:
    """Free KV blocks that only running requests may take."""
    return int(scheduler.kv_cache_manager.watermark_blocks)


def free_blocks(scheduler: Any) -> int:
    """KV blocks that admission may take: free ones but the watermark."""
    free = int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())
    return free - watermark_blocks(scheduler)


def is_blocked(scheduler: Any, request: Any) -> bool:
    """Waits for something outside: a grammar, a transfer, output still in flight."""
    stale = request.num_stale_output_tokens and not request.drop_stale_output
    return bool(stale or scheduler._is_blocked_waiting_status(request.status))


def unblock(scheduler: Any, request: Any) -> bool:
    """Try to promote a blocked request, as the engine would at the head of its queue."""
    if scheduler._is_blocked_waiting_status(request.status):
        scheduler._handle_blocked_waiting_request(request)
    return not is_blocked(scheduler, request)


def preempt(scheduler: Any, request: Any) -> None:
    """Take a running request's seat and KV; it goes back to the waiting queue."""
    scheduler.running.remove(request)
    scheduler._preempt_request(request, time.monotonic())
    # The runner would else take it for part of the previous batch when it resumes.
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def admitted(output: Any) -> dict[str, int]:
    """Requests that got a seat in this step, with the tokens found in the KV cache."""
    found = {new.req_id: int(new.num_computed_tokens) for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    if cached.resumed_req_ids:
        for i, request_id in enumerate(cached.req_ids):
            if request_id in cached.resumed_req_ids:
                found[request_id] = int(cached.num_computed_tokens[i])
    return found


def results(outputs: dict[int, Any]) -> Iterator[tuple[str, int, Status | None]]:
    """Id, new tokens and how it ended, if it did, of each request with a result."""
    for core_outputs in outputs.values():
        for output in core_outputs.outputs:
            end = None if output.finish_reason is None else how_ended(output)
            yield output.request_id, len(output.new_token_ids), end


def rejected(scheduler: Any, scheduled: Any, produced: Mapping[str, int]) -> dict[str, int]:
    """Draft tokens of a step that were computed in vain, by running request.

    Those of a request that was preempted since then went with its KV.
    """
    found: dict[str, int] = {}
    for request_id, drafts in scheduled.scheduled_spec_decode_tokens.items():
        request = scheduler.requests.get(request_id)
        accepted = produced.get(request_id, 0) - 1
        if request is not None and request.status == RequestStatus.RUNNING and accepted >= 0:
            found[request_id] = len(drafts) - accepted
    return found


def goes_on(request: Any) -> bool:
    """A session whose next part is there, so that it waits to run again."""
    return bool(request.status == RequestStatus.WAITING)


def set_limits(scheduler: Any, limits: Limits) -> None:
    """Limits from the next step on; the values at start are ceilings, which the runner keeps."""
    if limits.max_running is not None:
        scheduler.max_num_active_reqs = limits.max_running
    if limits.token_budget is not None:
        scheduler.max_num_scheduled_tokens = limits.token_budget
    if limits.prefill_chunk is not None:
        scheduler.scheduler_config.long_prefill_token_threshold = limits.prefill_chunk


def end(scheduler: Any, request: Any) -> None:
    """End a request from inside; the engine gives it no output."""
    scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)


def refusal(request_id: str, reason: str) -> EngineCoreOutput:
    """What the client of a request gets that ended before it started."""
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=[],
        finish_reason=FinishReason.ABORT,
        stop_reason=f"{_OURS}{reason}",
    )


def add_output(outputs: dict[int, Any], client: int, output: EngineCoreOutput) -> None:
    """Send one more output to a client."""
    if client in outputs:
        outputs[client].outputs.append(output)
    else:
        outputs[client] = EngineCoreOutputs(outputs=[output])


def how_ended(output: Any) -> Status:
    """The state in which a request ended, by its last output."""
    reason = str(output.stop_reason or "")
    if reason.startswith(f"{_OURS}expired"):
        return Status.EXPIRED
    if reason.startswith(f"{_OURS}refused"):
        return Status.REFUSED
    return Status.FINISHED if output.finish_reason in _FINISHED else Status.ABORTED


def result_count(outputs: dict[int, Any]) -> int:
    """Requests with a result."""
    return sum(len(core_outputs.outputs) for core_outputs in outputs.values())


def ended(scheduler: Any) -> list[str]:
    """Requests that ended since the last step was scheduled."""
    return list(scheduler.finished_req_ids)


def end_status(status: Any) -> Status:
    """How a request ended, in our words."""
    stopped = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
    return Status.FINISHED if status in stopped else Status.ABORTED


class KvProbe:
    """Dry runs in the KV cache manager."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def prefix(self, ids: Iterable[str]) -> tuple[IntArray, IntArray]:
        """Cached tokens, and free blocks that starting the whole prompt takes."""
        hits: list[int] = []
        needs: list[int] = []
        manager, size = self._scheduler.kv_cache_manager, self._scheduler.block_size
        for request_id in ids:
            request = self._scheduler.requests[request_id]
            blocks, hit = manager.get_computed_blocks(request)[:2]
            # A hit that nobody holds is taken from the free blocks like any other.
            held = max((sum(b.ref_cnt > 0 for b in group) for group in blocks.blocks), default=0)
            hits.append(int(hit))
            needs.append(-(-request.num_tokens // size) - held)
        return np.array(hits, dtype=np.int64), np.array(needs, dtype=np.int64)

    def held(self, ids: Iterable[str]) -> IntArray:
        """Blocks freed by displacing each; -1 for a request that cannot be freed now."""
        return np.array([self._held(request_id) for request_id in ids], dtype=np.int64)

    def _held(self, request_id: str) -> int:
        request = self._scheduler.requests.get(request_id)
        if request is None or request.status != RequestStatus.RUNNING:
            return -1
        if not self._scheduler._request_blocks_can_be_freed(request):
            return -1
        groups = self._scheduler.kv_cache_manager.get_blocks(request_id).blocks
        return min((sum(b.ref_cnt == 1 for b in group) for group in groups), default=0)
