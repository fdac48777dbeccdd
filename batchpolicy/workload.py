"""Requests over time: what traces, generators and cases all become."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from batchpolicy.errors import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request; times in seconds from the start of the workload."""

    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    """What it will really produce; the policy never sees it."""
    max_tokens: int
    """The ceiling that the client sets; an engine stops at the lesser of the two."""
    priority: int = 0
    tenant: str = ""
    request_class: str = ""
    """Name of its class, for targets and metrics."""
    ttft_slo_s: float = math.inf
    tpot_slo_s: float = math.inf
    deadline_s: float = math.inf
    weight: float = 1.0
    session: str = ""
    """Turns of one conversation: each prompt begins with the text of the turn before,
    as far as it reaches. Prefix blocks, where given, say it more precisely."""
    prefix_id: str = ""
    """Requests with one id share their first ``prefix_tokens`` prompt tokens."""
    prefix_tokens: int = 0
    prefix_blocks: tuple[int, ...] = ()
    """Ids of the prompt's blocks from its start: equal ids, equal tokens. In place of
    ``prefix_id``; what the blocks do not cover is the request's own."""
    prefix_block_tokens: int = 0
    """Tokens of a block; the last one may be cut short by the prompt's end."""
    lora: str = ""
    """Adapter that it needs."""
    queue_ttl_s: float = math.inf
    """Longest time it may wait before it first starts."""
    cancel_at_s: float = math.inf
    ready_at_s: float = -math.inf
    """It cannot start before, for reasons outside: a grammar being compiled, a transfer."""
    arrival_after: str = ""
    """Id of a request that must have ended ``gap_s`` seconds before this one arrives; it
    stands in front of this one, whose ``arrival_s`` is the earliest time."""
    gap_s: float = 0.0
    encoder_tokens: int = 0
    """Encoder space that it holds from its start until its prefill is done."""
    predicted_output_tokens: float = math.nan


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival.

    Raises
    ------
    WorkloadError
        When there is no request, an id repeats, arrivals are not sorted, or a
        length is not positive; every fault is named at once.
    """

    name: str
    requests: tuple[WorkloadRequest, ...]

    def __post_init__(self) -> None:
        faults = list(_faults(self.requests))
        if faults:
            shown = "\n".join(f"  {fault}" for fault in faults[:10])
            more = f"\n  ... and {len(faults) - 10} more" if len(faults) > 10 else ""
            raise WorkloadError(f"workload {self.name!r} cannot be replayed:\n{shown}{more}")

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last arrival."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    def needs(self) -> dict[str, str]:
        """What an engine must be able to do to serve it, and the field that asks for it."""
        asked = {
            "abort": ("cancel_at_s", any(r.cancel_at_s < math.inf for r in self.requests)),
            "lora": ("lora", any(r.lora for r in self.requests)),
            "queue_ttl": ("queue_ttl_s", any(r.queue_ttl_s < math.inf for r in self.requests)),
            "blocked_requests": (
                "ready_at_s",
                any(r.ready_at_s > r.arrival_s for r in self.requests),
            ),
            "follow_ups": ("arrival_after", any(r.arrival_after for r in self.requests)),
            "encoder_budget": ("encoder_tokens", any(r.encoder_tokens for r in self.requests)),
        }
        return {need: name for need, (name, found) in asked.items() if found}

    def classes(self) -> list[str]:
        """Names of the classes in it, the most urgent priority first."""
        best: dict[str, int] = {}
        for r in self.requests:
            best[r.request_class] = min(best.get(r.request_class, r.priority), r.priority)
        return sorted(best, key=lambda name: (best[name], name))

    def stretched(self, factor: float) -> Workload:
        """The same requests with all gaps between arrivals multiplied by ``factor``.

        Absolute deadlines and cancellations keep their distance to the arrival.
        """
        start_s = self.requests[0].arrival_s

        def moved(r: WorkloadRequest) -> WorkloadRequest:
            arrival_s = (r.arrival_s - start_s) * factor
            shift_s = arrival_s - r.arrival_s
            return replace(
                r,
                arrival_s=arrival_s,
                deadline_s=r.deadline_s + shift_s,
                cancel_at_s=r.cancel_at_s + shift_s,
                ready_at_s=r.ready_at_s + shift_s,
            )

        return Workload(self.name, tuple(moved(r) for r in self.requests))

    def digest(self) -> str:
        """SHA-256 of the requests, in hex: equal for equal workloads."""
        rows = [asdict(r) for r in self.requests]
        return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _faults(requests: Iterable[WorkloadRequest]) -> Iterable[str]:
    seen: set[str] = set()
    last_s, count = -math.inf, 0
    for count, r in enumerate(requests, start=1):  # noqa: B007 - the count is used after the loop
        if r.id in seen:
            yield f"request {r.id!r}: the id is used twice"
        if r.arrival_after and r.arrival_after not in seen:
            yield (
                f"request {r.id!r}: arrival_after is {r.arrival_after!r}, expected the id of a "
                "request in front of it"
            )
        seen.add(r.id)
        if not 0.0 <= r.gap_s < math.inf:
            yield f"request {r.id!r}: gap_s is {r.gap_s}, expected a finite time, at least 0"
        if not math.isfinite(r.arrival_s):
            yield f"request {r.id!r}: arrival_s is {r.arrival_s}, expected a finite time"
        elif r.arrival_after:
            # When it comes depends on the other's end.
            pass
        elif r.arrival_s < last_s:
            yield (
                f"request {r.id!r}: arrives at {r.arrival_s} s, before its predecessor; "
                "sort by arrival_s"
            )
        else:
            last_s = r.arrival_s
        sizes: dict[str, Any] = {
            "prompt_tokens": r.prompt_tokens,
            "output_tokens": r.output_tokens,
            "max_tokens": r.max_tokens,
        }
        for name, value in sizes.items():
            if value < 1:
                yield f"request {r.id!r}: {name} is {value}, expected at least 1"
        if r.prefix_blocks:
            yield from _block_faults(r)
    if not count:
        yield "it has no requests"


def _block_faults(r: WorkloadRequest) -> Iterable[str]:
    if r.prefix_id:
        yield f"request {r.id!r}: has prefix_id and prefix_blocks; leave one out"
    if r.prefix_block_tokens < 1:
        yield (
            f"request {r.id!r}: prefix_block_tokens is {r.prefix_block_tokens}, expected at "
            "least 1 where there are prefix_blocks"
        )
    elif (len(r.prefix_blocks) - 1) * r.prefix_block_tokens >= r.prompt_tokens:
        yield (
            f"request {r.id!r}: {len(r.prefix_blocks)} prefix_blocks of {r.prefix_block_tokens} "
            f"tokens are more than its prompt of {r.prompt_tokens}"
        )
