"""Whether this SGLang has what the adapter hooks, calls and reads, and runs in a way it takes.

Looked for by name, never by version number. Alternatives are written ``new|old``.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any

from batchpolicy.errors import ConfigError, EngineUnavailable
from batchpolicy_sglang.seams import limits, prefill, upstream
from batchpolicy_sglang.seams.conflicts import Options, conflicts

SUPPORTED = "0.5.11 to 0.5.23"

_SCHEDULER = (
    "init_schedule_policy",
    "init_request_dispatcher",
    "_add_request_to_queue",
    "get_next_batch_to_run",
    "get_new_batch_prefill",
    "get_num_allocatable_reqs",
    "process_batch_result",
    "abort_request",
)
_ATTRIBUTES = (
    "policy",
    "page_size",
    "tree_cache",
    "token_to_kv_pool_allocator",
    "req_to_token_pool",
    "max_total_num_tokens",
    "max_prefill_tokens",
    "max_running_requests",
    "chunked_prefill_size",
    "is_mixed_chunk",
    "enable_overlap",
    "enable_lora",
    "schedule_low_priority_values_first",
    "waiting_queue",
    "running_batch",
    "chunked_req",
)
_NAMES = ("plugins.hook_registry.HookRegistry",)
_ADDER = ("add_one_req", "add_chunked_req", "_update_prefill_budget")


def version() -> str:
    """SGLang's version, for messages."""
    try:
        return version_of("sglang")
    except PackageNotFoundError:
        return "of a source tree"


def check_classes() -> None:
    """Refuse a SGLang whose classes lack what the adapter hooks or calls.

    Raises
    ------
    EngineUnavailable
        Naming what is missing and the version that was found.
    """
    scheduler, adder = upstream.scheduler().Scheduler, upstream.schedule_policy().PrefillAdder
    missing = [f"Scheduler.{name}" for name in _missing(scheduler, _SCHEDULER)]
    missing += [f"PrefillAdder.{name}" for name in _missing(adder, _ADDER)]
    missing += [name for name in _NAMES if not is_there(f"sglang.srt.{name}")]
    _refuse_missing(missing)


def check_scheduler(scheduler: Any, *, several: bool) -> None:
    """Refuse a scheduler that lacks what the adapter reads, or runs in a way it does not take.

    Raises
    ------
    EngineUnavailable
        Naming what is missing and the version that was found.
    ConfigError
        Naming the options of the server that are in the way, all at once.
    """
    _refuse_missing([f"Scheduler.{name}" for name in _missing(scheduler, _ATTRIBUTES)])
    options = _options(scheduler)
    faults = list(conflicts(options))
    missing = _missing(scheduler, prefill.NEEDS) if options.role == "prefill" else []
    if missing:
        faults.append(
            f"--disaggregation-mode is 'prefill', and SGLang {version()} has no "
            f"{', '.join(f'Scheduler.{name}' for name in missing)}; batchpolicy orders such "
            "servers since 0.5.22."
        )
    if several and not passes_ticks():
        faults.append(
            f"--tp-size and --pp-size must be 1: SGLang {version()} gives plug-ins no way to let "
            "all ranks read one clock, and ranks that disagree give wrong answers."
        )
    if faults:
        raise ConfigError("\n".join(faults))


def _options(scheduler: Any) -> Options:
    said = role(scheduler)
    return Options(
        schedule_policy=str(getattr(scheduler, "schedule_policy", "fcfs")),
        priority_scheduling=bool(getattr(scheduler, "enable_priority_scheduling", False)),
        diffusion=getattr(scheduler, "dllm_config", None) is not None,
        hisparse=bool(getattr(scheduler, "enable_hisparse", False)),
        pdmux=bool(getattr(scheduler, "enable_pdmux", False)),
        lora_overlap_loading=bool(getattr(scheduler, "enable_lora_overlap_loading", False)),
        role=said,
        stages=1 if said == "null" else limits.stages(scheduler),
        role_switch=bool(_of_split_servers("enable_pd_role_switch")),
    )


def check_queues(scheduler: Any) -> None:
    """Refuse a scheduler that only prefills and lacks a queue that is read there.

    Raises
    ------
    EngineUnavailable
        Naming what is missing and the version that was found.
    """
    _refuse_missing([f"Scheduler.{name}" for name in _missing(scheduler, prefill.QUEUES)])


def passes_ticks() -> bool:
    """Whether the broadcast of requests takes what the leader adds."""
    receiver = _resolved(
        "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
        ".recv_requests"
    )
    if receiver is None:
        return False
    # Hooks keep the signature by functools.wraps.
    return "local_reqs" in inspect.signature(receiver).parameters


def is_there(target: str) -> bool:
    """Whether a dotted name leads to something."""
    return _resolved(target) is not None


def hook_registry() -> tuple[Any, Any]:
    """SGLang's registry of hooks, and the kinds of them."""
    found = upstream.hook_registry()
    return found.HookRegistry, found.HookType


def update_handlers(live: Any) -> dict[str, Any]:
    """What ``/set_internal_state`` does with our keys."""
    internal_state = upstream.internal_state()

    def validate(key: str, value: object) -> None:
        try:
            live.check(key, value)
        except ConfigError as e:
            raise internal_state.UpdateRejected(str(e)) from None

    handler = internal_state._UpdateHandler(validate, live.apply)
    return dict.fromkeys(live.keys(), handler)


def role(scheduler: Any) -> str:
    """``prefill``, ``decode``, or ``null`` for a server that does both."""
    said = _of_split_servers("disaggregation_mode")
    if said is None:
        # Older releases read the arguments of the server.
        args = getattr(scheduler, "server_args", None)
        said = getattr(args, "disaggregation_mode", None)
    return str(said or "null")


def _of_split_servers(setting: str) -> Any:
    """A setting of split servers; None in older releases, and outside of a server."""
    try:
        return getattr(upstream.runtime_context().get_disagg(), setting, None)
    except (ImportError, AttributeError, ValueError):
        return None


def _resolved(target: str) -> Any:
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError):
        return None


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
            f"SGLang {version()} cannot take a policy: it has no {', '.join(missing)}. "
            f"batchpolicy needs SGLang {SUPPORTED}."
        )
