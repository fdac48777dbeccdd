"""How a scheduler is made in this process: 0.5.22 and later, and before."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any

from batchpolicy_sglang.seams import names


def settle(args: Any) -> None:
    """Let a server's arguments fill what they leave open; before 0.5.19 they have done so."""
    if hasattr(args, "resolve_once"):
        args.resolve_once()


def construct(kind: Any, args: Any) -> Any:
    """A scheduler of one rank, of the class ``kind``, with settled arguments."""
    _publish(args)
    ports = names.server_args.PortArgs.init_new(args)
    first: dict[str, Any] = {}
    if "tp_rank" in signature(names.scheduler.Scheduler.__init__).parameters:
        # Before 0.5.21 it is told its place: device and ranks.
        first = {**dict.fromkeys(_PLACES, 0), "dp_rank": None}
    with _one_group():
        made = kind(args, ports, **first)
    # What older releases set as their loop begins.
    if not hasattr(made, "schedule_stream"):
        made.schedule_stream = made.device_module.Stream(priority=0)
        made.schedule_stream.synchronize = _nothing
    if not hasattr(made, "result_queue"):
        made.result_queue = deque()
    return made


def let_adapters_in(scheduler: Any, most: int) -> None:
    """Let a scheduler admit by SGLang's rule for adapters, though none is loaded."""
    manager = import_module("sglang.srt.lora.lora_manager").LoRAManager
    pool = SimpleNamespace(max_loras_per_batch=most, num_pinned_loras=0)
    scheduler.enable_lora, scheduler.max_loras_per_batch = True, most
    scheduler.tp_worker.model_runner.lora_manager = SimpleNamespace(
        validate_lora_batch=partial(manager.validate_lora_batch, pool)
    )


_PLACES = ("gpu_id", "tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank")


def _publish(args: Any) -> None:
    """Since 0.5.17 arguments are read from a context of the process."""
    context = names.runtime_context
    if not hasattr(context, "publish"):
        if context is not None:
            # Which a scheduler fills itself, once.
            context.reset_context()
        return
    ranks = getattr(context, "SpawnRanks", None)
    if ranks is None:
        context.publish(args, role="scheduler")
    else:
        place = ranks(world_rank=0, dp_rank=None, gpu_id=0)
        context.publish(args, role="scheduler", ranks=place)


@contextmanager
def _one_group() -> Generator[None, None, None]:
    """Let the process groups of the first scheduler serve the others too."""
    with ExitStack() as stack:
        if names.parallel_state.model_parallel_is_initialized():
            for name in ("distributed.bootstrap", "model_executor.model_runner"):
                for function in (
                    "init_parallel_runtime",
                    "init_distributed_environment",
                    "initialize_model_parallel",
                ):
                    stack.enter_context(_without(name, function))
        yield


@contextmanager
def _without(module: str, function: str) -> Generator[None, None, None]:
    try:
        there = import_module(f"sglang.srt.{module}")
    except ModuleNotFoundError:
        yield
        return
    kept = getattr(there, function, None)
    if kept is not None:
        setattr(there, function, _nothing)
    try:
        yield
    finally:
        if kept is not None:
            setattr(there, function, kept)


def _nothing(*_: Any, **__: Any) -> None:
    pass
