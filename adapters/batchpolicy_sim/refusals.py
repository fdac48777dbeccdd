"""What no run could serve as it is set up, said before it starts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from batchpolicy.engine import EngineLimits
from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload

_SHOWN = 10


def refuse_what_cannot_run(workload: Workload, limits: EngineLimits) -> None:
    """Refuse limits that mean nothing here, and requests that the engine is not set up for.

    Raises
    ------
    WorkloadError
        Naming up to ten of them.
    """
    if limits.async_scheduling:
        raise WorkloadError(
            "the light engine plans each step when the results of the one before it are in: "
            "set async_scheduling to False, or use the engine vllm."
        )
    if limits.max_loras is not None:
        return
    faults = [
        f"  request {r.id!r}: LoRA adapter {r.lora!r}, of an engine that is set up without; "
        "say how many may run at once with EngineLimits(max_loras=N)"
        for r in workload.requests
        if r.lora
    ]
    if faults:
        shown = "\n".join(faults[:_SHOWN])
        more = f"\n  ... and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise WorkloadError(
            f"workload {workload.name!r}: these requests can never run:\n{shown}{more}"
        )


def refuse_limits(limits: EngineLimits, without: Collection[str], engine: str) -> None:
    """Refuse limits that an engine does not keep.

    Raises
    ------
    WorkloadError
        Naming all of them.
    """
    asked = [
        field.name
        for field in fields(limits)
        if field.name in without and getattr(limits, field.name) != field.default
    ]
    if asked:
        raise WorkloadError(
            f"the engine {engine} keeps no limit {' and '.join(asked)}; leave it out."
        )


def refuse_part_blocks(limits: EngineLimits, engine: str) -> None:
    """Refuse a token budget that is no whole number of KV blocks.

    Raises
    ------
    WorkloadError
        For an engine that cuts prompts at their ends.
    """
    block, chunk = limits.kv_block_tokens, limits.max_num_batched_tokens
    if limits.chunked_prefill and chunk % block:
        raise WorkloadError(
            f"max_num_batched_tokens is {chunk}, expected a multiple of the {block} tokens of a "
            f"KV block: {engine} cuts prompts at the ends of its pages."
        )
