"""What no run could serve, said before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from batchpolicy.engine import EngineLimits
from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload, WorkloadRequest


def refuse_what_cannot_run(workload: Workload, limits: EngineLimits) -> None:
    """Refuse requests that can never run within the limits, and limits that mean nothing here.

    Raises
    ------
    WorkloadError
        Naming up to ten of them, with the limit that they are over.
    """
    if limits.async_scheduling:
        raise WorkloadError(
            "the light engine plans each step when the results of the one before it are in: "
            "set async_scheduling to False, or use the engine vllm."
        )
    faults = list(_faults(workload, limits))
    if faults:
        shown = "\n".join(faults[:10])
        more = f"\n  ... and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise WorkloadError(
            f"workload {workload.name!r}: these requests can never run:\n{shown}{more}"
        )


def _faults(workload: Workload, limits: EngineLimits) -> Iterator[str]:
    pool = limits.kv_blocks * limits.kv_block_tokens
    most = min(pool, limits.max_model_len)
    for r in workload.requests:
        if r.prompt_tokens + min(r.output_tokens, r.max_tokens) > most:
            yield (
                f"  request {r.id!r}: {r.prompt_tokens} prompt + {r.output_tokens} output tokens, "
                f"of {most} (KV pool {limits.kv_blocks} blocks of {limits.kv_block_tokens} "
                f"tokens, max_model_len {limits.max_model_len})"
            )
        else:
            yield from _other_faults(r, limits)


def _other_faults(r: WorkloadRequest, limits: EngineLimits) -> Iterator[str]:
    tokens, encoder = limits.max_num_batched_tokens, limits.encoder_cache_tokens
    # Once preempted, it computes its answer again as well, all but the last token.
    whole = r.prompt_tokens + min(r.output_tokens, r.max_tokens) - 1
    if not limits.chunked_prefill and whole > tokens:
        yield (
            f"  request {r.id!r}: {whole} tokens, of {tokens} in a step, which has to hold them "
            "all without chunked prefill"
        )
    if encoder is not None and r.encoder_tokens > encoder:
        yield f"  request {r.id!r}: {r.encoder_tokens} encoder tokens, of {encoder}"
    if r.lora and limits.max_loras is None:
        yield (
            f"  request {r.id!r}: LoRA adapter {r.lora!r}, of an engine that is set up without; "
            "say how many may run at once with EngineLimits(max_loras=N)"
        )
