"""What the engine says about its steps, and what we add to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from batchpolicy.requests import Status
from batchpolicy_vllm.seams.names import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    RequestStatus,
)

_OURS = "batchpolicy: "
_FINISHED = (FinishReason.STOP, FinishReason.LENGTH)


def admitted(output: Any) -> dict[str, int]:
    """Requests that got a seat in this step, with the tokens found in the KV cache."""
    found = {new.req_id: int(new.num_computed_tokens) for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    if cached.resumed_req_ids:
        for i, request_id in enumerate(cached.req_ids):
            if request_id in cached.resumed_req_ids:
                found[request_id] = int(cached.num_computed_tokens[i])
    return found


def tell_preempted(output: Any, ids: Iterable[str]) -> None:
    """Let the workers know whom we preempted; up to 0.20 the engine only tells its own."""
    told: set[str] = output.preempted_req_ids or set[str]()
    untold = set(ids) - told
    if untold:
        output.preempted_req_ids = told | untold


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


def ended(scheduler: Any, outputs: dict[int, Any]) -> list[str]:
    """Requests that ended since the last step was scheduled, in the order of their outputs.

    vLLM keeps a set, whose order differs between processes; it tells apart at once the
    steps in which nobody or one request ended. Those without an output come last.
    """
    found: set[str] = scheduler.finished_req_ids
    if len(found) < 2:
        return list(found)
    told = [request_id for request_id, _, end in results(outputs) if end is not None]
    untold = found.difference(told)
    return [i for i in told if i in found] + (sorted(untold) if untold else [])


def has_started(request: Any) -> bool:
    """Whether a request that has not ended runs, or ran before it was preempted."""
    return request.status in (RequestStatus.RUNNING, RequestStatus.PREEMPTED)


def ended_ids(found: Iterable[Any]) -> list[str]:
    """Ids of what ``finish_requests`` gives: requests, and before 0.30 pairs of id and client."""
    return [one[0] if isinstance(one, tuple) else one.request_id for one in found]


def end_status(status: Any) -> Status:
    """How a request ended, in our words."""
    stopped = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
    return Status.FINISHED if status in stopped else Status.ABORTED
