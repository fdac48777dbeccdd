"""How requests end in SGLang, and what their clients are told."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

from batchpolicy.requests import Status
from batchpolicy_sglang.seams import batches, upstream

_OURS = "batchpolicy: "


def how_ended(req: Any) -> Status | None:
    """The state in which a request ended; None while it has not."""
    if not req.finished():
        return None
    return Status.ABORTED if _type(req.finished_reason) == "abort" else Status.FINISHED


def end_of(message: Any) -> tuple[str, Status] | None:
    """Whom a message to a client ends, and how; None for other messages."""
    if type(message).__name__ != "AbortReq":
        return None
    reason: Any = message.finished_reason
    said = str(reason.get("message", "")) if reason else ""
    status = Status.ABORTED
    if said.startswith(f"{_OURS}expired"):
        status = Status.EXPIRED
    elif said.startswith(f"{_OURS}refused"):
        status = Status.REFUSED
    return message.rid, status


def cancel(scheduler: Any, request_id: str, live: Iterable[str]) -> None:
    """The client of a request has left.

    SGLang aborts all requests whose id begins with the one that it is given, so that the
    others are called something else meanwhile.
    """
    like = {i for i in live if i != request_id and i.startswith(request_id)}
    renamed = [req for req in _all_of(scheduler) if req.rid in like] if like else []
    for req in renamed:
        req.rid = f"\0{req.rid}"
    try:
        scheduler.abort_request(upstream.io_struct().AbortReq(rid=request_id))
    finally:
        for req in renamed:
            req.rid = req.rid[1:]


def teller(scheduler: Any) -> tuple[Any, str]:
    """What tells clients that SGLang has ended their requests: an object, and a method of it."""
    if hasattr(scheduler, "send_abort_output"):
        return scheduler, "send_abort_output"
    # Before 0.5.23, and before 0.5.13.
    channels = getattr(scheduler, "ipc_channels", scheduler)
    return channels.send_to_tokenizer, "send_output"


def refuse(scheduler: Any, req: Any, reason: str) -> None:
    """End a request that waits; its client gets status 503 and the reason."""
    scheduler.waiting_queue[:] = [r for r in scheduler.waiting_queue if r is not req]
    release = getattr(scheduler, "_release_aborted_request", None)
    if release is not None:
        release(req)
    message = f"{_OURS}{reason}"
    told = upstream.io_struct().AbortReq(
        rid=req.rid,
        finished_reason={"type": "abort", "status_code": 503, "message": message},
    )
    sender, name = teller(scheduler)
    getattr(sender, name)(told, req)


def preempt(scheduler: Any, running_batch: Any, rids: Iterable[str]) -> None:
    """Take the seats and KV of running requests; they go back to the waiting queue."""
    going = set(rids)
    reqs = list(running_batch.reqs)
    # Before 0.5.20 it asks for the arguments of the server.
    takes = signature(running_batch.release_req).parameters
    more = (scheduler.server_args,) if "server_args" in takes else ()
    gone = [i for i, req in enumerate(reqs) if req.rid in going and not req.finished()]
    for count, i in enumerate(gone, start=1):
        running_batch.release_req(i, len(reqs) - count, *more)
    kept = [i for i in range(len(reqs)) if i not in gone]
    running_batch.filter_batch(keep_indices=kept)
    running_batch.batch_is_full = False
    for i in gone:
        scheduler._add_request_to_queue(reqs[i], is_retracted=True)


def _all_of(scheduler: Any) -> list[Any]:
    found = {id(req): req for req in scheduler.waiting_queue}
    found |= {id(req): req for req in batches.in_batches(scheduler)}
    if scheduler.chunked_req is not None:
        found[id(scheduler.chunked_req)] = scheduler.chunked_req
    return list(found.values())


def _type(reason: Any) -> str:
    said = reason.to_json()
    return str(said.get("type", ""))
