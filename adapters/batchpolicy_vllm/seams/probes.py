"""Whether a scheduler has what the adapter overrides, calls and reads.

Looked for by name, never by version number: vendors backport, and nightly builds
carry the number of the last release. Alternatives are written ``new|old``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batchpolicy.errors import ConfigError, EngineUnavailable
from batchpolicy_vllm.seams.names import SUPPORTED, vllm_version

_METHODS = (
    "schedule",
    "update_from_output",
    "add_request",
    "finish_requests",
    "_preempt_request",
    "_enqueue_waiting_request",
    "_is_blocked_waiting_status",
    # Renamed in 0.31; what they do is the same.
    "_handle_blocked_waiting_request|_try_promote_blocked_waiting_request",
)
_ATTRIBUTES = (
    "waiting",
    # 0.31 split what 0.20 skipped; see ``queues``.
    "kv_holding_waiting|skipped_waiting",
    "running",
    "requests",
    "policy",
    "pause_state",
    "max_num_running_reqs",
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
_MANAGER = ("block_pool", "get_computed_blocks", "get_blocks", "log_stats")


def check_class(base: type) -> None:
    """Refuse a scheduler class that lacks what the adapter overrides or calls.

    Raises
    ------
    EngineUnavailable
        Naming what is missing and the version that was found.
    """
    _refuse_missing(_missing(base, _METHODS))


def check_scheduler(scheduler: Any) -> None:
    """Refuse a scheduler that lacks what the adapter reads; see ``check_class``."""
    missing = _missing(scheduler, _ATTRIBUTES)
    manager = getattr(scheduler, "kv_cache_manager", None)
    if manager is not None:
        missing += [f"kv_cache_manager.{name}" for name in _missing(manager, _MANAGER)]
    _refuse_missing(missing)


def refuse_ranks_of_one_mind(scheduler: Any) -> None:
    """Refuse an engine whose ranks each run a scheduler and must all decide alike.

    A policy reads the clock, and the clocks of two processes differ: sooner or later two
    ranks would schedule different requests, and the model would hang or answer wrongly.

    Raises
    ------
    ConfigError
        With ``--distributed-executor-backend external_launcher``.
    """
    backend = scheduler.vllm_config.parallel_config.distributed_executor_backend
    if backend == "external_launcher":
        raise ConfigError(
            "distributed_executor_backend is 'external_launcher': each rank schedules for itself "
            "and all must decide alike, which a policy that reads the clock cannot promise. Use "
            "another backend (mp, ray), or an order of the engine's own, such as policy fcfs."
        )


def _missing(thing: Any, names: Iterable[str]) -> list[str]:
    """Those of which no alternative is there."""
    return [
        " or ".join(either.split("|"))
        for either in names
        if not any(hasattr(thing, name) for name in either.split("|"))
    ]


def _refuse_missing(missing: list[str]) -> None:
    if missing:
        raise EngineUnavailable(
            f"vLLM {vllm_version} cannot take a policy: its scheduler has no "
            f"{', '.join(missing)}. batchpolicy needs vLLM {SUPPORTED}."
        )
