"""Where requests wait.

Since 0.31 vLLM has ``waiting`` and ``kv_holding_waiting``: requests that own KV blocks
already (loads from elsewhere, sessions), which go first whatever the policy. Before, it
had ``waiting`` and ``skipped_waiting``, for all that could not start when last looked at,
and went through that one first. What ours puts there sorts the requests as 0.31 does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from batchpolicy_vllm.seams.names import (
    FCFSRequestQueue,
    PauseState,
    RequestQueue,
    RequestStatus,
    SchedulingPolicy,
    create_request_queue,
)


def _second_queue(scheduler: Any) -> str:
    held = "kv_holding_waiting"
    return held if hasattr(scheduler, held) else "skipped_waiting"


def use_native_order(scheduler: Any, order: str) -> None:
    """Let the engine's own queue of that order stand, as if configured at start."""
    policy = SchedulingPolicy(order)
    if scheduler.policy != policy:
        scheduler.policy = policy
        scheduler.waiting = create_request_queue(policy)
        setattr(scheduler, _second_queue(scheduler), create_request_queue(policy))


def use_queue(scheduler: Any, queue: RequestQueue) -> None:
    """Put our queue in place of the waiting one; the tail of ``running`` is the victim."""
    use_native_order(scheduler, "fcfs")
    scheduler.waiting = queue
    if _second_queue(scheduler) == "skipped_waiting":
        scheduler.skipped_waiting = _Holding(queue)
        scheduler._enqueue_waiting_request = scheduler.skipped_waiting.add_request


class _Holding(FCFSRequestQueue):
    """Keeps requests that own KV blocks, and passes all others on to the policy's queue."""

    def __init__(self, others: RequestQueue) -> None:
        super().__init__()
        self._others = others

    def add_request(self, request: Any) -> None:
        if _holds_kv(request):
            super().add_request(request)
        else:
            self._others.add_request(request)

    def prepend_request(self, request: Any) -> None:
        if _holds_kv(request):
            super().prepend_request(request)
        else:
            self._others.prepend_request(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.prepend_request(request)


def _holds_kv(request: Any) -> bool:
    loading = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    return bool(loading or request.num_computed_tokens > 0)


def holding(scheduler: Any) -> Iterable[Any]:
    """Requests that wait with KV blocks of their own."""
    queue: Iterable[Any] = getattr(scheduler, _second_queue(scheduler))
    return queue


def admits(scheduler: Any) -> bool:
    """The engine is not paused, so that waiting requests may start."""
    return bool(scheduler.pause_state == PauseState.UNPAUSED)


def awaits_output(request: Any) -> bool:
    """Was preempted with output in flight, which has to be there before it may start again."""
    if hasattr(request, "num_stale_output_tokens"):
        return bool(request.num_stale_output_tokens and not request.drop_stale_output)
    # Before 0.30 the engine reckons with the output as if nothing had happened. That holds
    # as long as nobody admits the request before the output is there.
    return bool(request.status == RequestStatus.PREEMPTED and request.num_output_placeholders)


def is_blocked(scheduler: Any, request: Any) -> bool:
    """Waits for something outside: a grammar, a transfer, output still in flight."""
    return awaits_output(request) or bool(scheduler._is_blocked_waiting_status(request.status))


def unblock(scheduler: Any, request: Any) -> bool:
    """Try to promote a blocked request, as the engine would at the head of its queue."""
    if scheduler._is_blocked_waiting_status(request.status):
        promote: Callable[[Any], Any] = getattr(
            scheduler, "_handle_blocked_waiting_request", None
        ) or (scheduler._try_promote_blocked_waiting_request)
        promote(request)
    return not is_blocked(scheduler, request)


def preempt(scheduler: Any, request: Any) -> None:
    """Take a running request's seat and KV; it goes back to the waiting queue."""
    scheduler.running.remove(request)
    scheduler._preempt_request(request, time.monotonic())
    # The runner would else take it for part of the previous batch when it resumes.
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def goes_on(request: Any) -> bool:
    """A session whose next part is there, so that it waits to run again."""
    return bool(request.status == RequestStatus.WAITING)


def end(scheduler: Any, request: Any) -> None:
    """End a request from inside; the engine gives it no output."""
    scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
