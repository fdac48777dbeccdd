"""Where requests are in a server that only prefills (``--disaggregation-mode prefill``).

They come into the waiting queue from one of those whose other end is not ready, and are in a
third one while their KV is sent.
"""

from __future__ import annotations

from typing import Any

NEEDS = ("get_next_disagg_prefill_batch_to_run", "release_aborted_prefill_waiting_req")
"""What is hooked and called, of ``Scheduler``."""
QUEUES = ("disagg_prefill_bootstrap_queue", "disagg_prefill_inflight_queue")
"""What is read of a scheduler; there only once all of it is set up."""


def bootstrapping(scheduler: Any) -> dict[str, Any]:
    """Requests whose other end is not ready, by id."""
    return {req.rid: req for req in scheduler.disagg_prefill_bootstrap_queue.queue}


def busy(scheduler: Any) -> dict[str, Any]:
    """Requests whose prompt is being computed, or whose KV is being sent, by id."""
    batches = [scheduler.last_batch]
    # There without overlap too, and then empty or not set.
    batches += [batch for batch, _ in getattr(scheduler, "result_queue", None) or ()]
    found = {req.rid: req for batch in batches if batch is not None for req in batch.reqs}
    if scheduler.chunked_req is not None:
        found[scheduler.chunked_req.rid] = scheduler.chunked_req
    found |= {req.rid: req for req in scheduler.disagg_prefill_inflight_queue}
    return {rid: req for rid, req in found.items() if not req.finished()}


def release(scheduler: Any, req: Any) -> None:
    """Give back what a waiting request holds, and tell its other end."""
    scheduler.release_aborted_prefill_waiting_req(req)
