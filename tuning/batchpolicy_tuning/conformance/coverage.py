"""What happened in a workload, so that being equal on it says something."""

from __future__ import annotations

from collections.abc import Sequence

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Run, StepRecord
from batchpolicy.requests import Status
from batchpolicy_tuning.conformance.problem import Problem

KINDS = (
    "the engine's own order",
    "a policy's plan",
    "queueing",
    "preemptions",
    "displacement",
    "prefix hits",
    "recomputation",
    "prompts in parts",
    "whole prompts only",
    "aborts",
    "expired in the queue",
    "refusals",
    "LoRA adapters",
    "watermark",
    "sessions",
    "a cap on prefill parts",
    "limits of a policy's own",
    "all held while nothing ran",
)
"""In the order of reports."""


def covered(problem: Problem, run: Run, steps: Sequence[StepRecord]) -> frozenset[str]:
    """Those of ``KINDS`` that happened."""
    limits, requests = problem.limits, problem.workload.requests
    had = {
        "the engine's own order": problem.native,
        "a policy's plan": not problem.native,
        "queueing": run.peak_waiting > 0,
        "preemptions": bool(run.preemptions.sum()),
        "displacement": run.counters.get("displaced", 0) > 0,
        "prefix hits": bool(run.cached_tokens.sum()),
        "recomputation": bool(run.recomputed_tokens.sum()),
        "prompts in parts": _in_parts(run, steps),
        "whole prompts only": not limits.chunked_prefill,
        "aborts": bool((run.status == int(Status.ABORTED)).any()),
        "expired in the queue": bool((run.status == int(Status.EXPIRED)).any()),
        "refusals": bool((run.status == int(Status.REFUSED)).any()),
        "LoRA adapters": any(r.lora for r in requests),
        "watermark": limits.watermark > 0.0,
        "sessions": limits.prefix_cache and any(r.session for r in requests),
        "a cap on prefill parts": limits.long_prefill_token_threshold > 0,
        "limits of a policy's own": _limits(problem.config),
        "all held while nothing ran": any(
            step.waiting and not (step.tokens or step.running) for step in steps
        ),
    }
    return frozenset(kind for kind, happened in had.items() if happened)


def _limits(config: PolicyConfig | None) -> bool:
    """Whether the policy or its file sets limits below the engine's."""
    if config is None:
        return False
    return config.build_policy().overrides("limits") or config.limits is not None


def _in_parts(run: Run, steps: Sequence[StepRecord]) -> bool:
    """Some request computed less than its prompt in its first step."""
    started: set[str] = set()
    wanted = {
        r.id: r.prompt_tokens - int(cached)
        for r, cached in zip(run.workload.requests, run.cached_tokens, strict=True)
    }
    for step in steps:
        for request_id, tokens in step.tokens.items():
            if request_id not in started:
                started.add(request_id)
                if tokens < wanted[request_id]:
                    return True
    return False
