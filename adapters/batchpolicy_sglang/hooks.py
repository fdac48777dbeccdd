"""Hooks on SGLang's classes; all else hangs on the scheduler that they bring a driver to."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from batchpolicy.errors import BatchPolicyError, EngineUnavailable
from batchpolicy.runner import Tick
from batchpolicy_sglang.attach import ATTRIBUTE, attach
from batchpolicy_sglang.driver import Driver
from batchpolicy_sglang.live import Live
from batchpolicy_sglang.prefill_driver import PrefillDriver, for_prefills
from batchpolicy_sglang.seams import limits, probes
from batchpolicy_sglang.settings import configured

logger = logging.getLogger(__name__)

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_RETRACTION = "sglang.srt.managers.schedule_batch.ScheduleBatch._get_decode_retraction_order"
_PARTS = "sglang.srt.managers.scheduler_components"
_RECEIVER = f"{_PARTS}.request_receiver.SchedulerRequestReceiver.recv_requests"
_STATE = f"{_PARTS}.internal_state.SchedulerInternalStateController"


def install() -> None:
    """Register the hooks and see to it that each of them has taken.

    Raises
    ------
    EngineUnavailable
        When this SGLang lacks what the adapter needs, or a hook was not applied.
    """
    probes.check_classes()
    share_log()
    wanted: dict[str, tuple[Callable[..., Any], str]] = {
        f"{_SCHEDULER}.init_schedule_policy": (after_init_schedule_policy, "AFTER"),
        f"{_SCHEDULER}.init_request_dispatcher": (after_init_request_dispatcher, "AFTER"),
        _RETRACTION: (after_retraction_order, "AFTER"),
        f"{_STATE}._update_handlers": (after_update_handlers, "AFTER"),
        f"{_STATE}.get_internal_state": (after_get_internal_state, "AFTER"),
    }
    if probes.passes_ticks():
        wanted[_RECEIVER] = (before_recv_requests, "BEFORE")
    if not probes.is_there(_STATE):
        # Before 0.5.22 the scheduler tells it itself.
        target = f"{_SCHEDULER}.get_internal_state"
        wanted[target] = (after_get_internal_state, "AFTER")
    present = {target: hook for target, hook in wanted.items() if probes.is_there(target)}
    registry, types = probes.hook_registry()
    for target, (hook, kind) in present.items():
        registry.register(target, hook, types[kind])
    registry.apply_hooks()
    missed = [target for target in present if target not in registry._patched]
    if missed:
        raise EngineUnavailable(
            f"SGLang {probes.version()} did not take the hook on {', '.join(missed)}; its log "
            "says why."
        )


def hook_retraction() -> None:
    """Only the hook that replays need too: the order is asked of a class, not of a scheduler."""
    registry, types = probes.hook_registry()
    if _RETRACTION not in registry._patched and probes.is_there(_RETRACTION):
        registry.register(_RETRACTION, after_retraction_order, types["AFTER"])
        registry.apply_hooks()


def after_init_schedule_policy(found: Any, scheduler: Any) -> None:
    """A scheduler has its order of its own: it gets a driver."""
    with _or_no_server():
        config = configured()
        if config is None:
            return
        several = limits.ranks(scheduler) > 1
        probes.check_scheduler(scheduler, several=several)
        only_prefills = probes.role(scheduler) == "prefill"
        if only_prefills:
            config = for_prefills(config)
            logger.info("batchpolicy: this server only prefills; nobody is displaced in it")
        order = config.native_order()
        if order == "fcfs":
            logger.info("batchpolicy: %s is the engine's own order", config.label)
            return
        kind = PrefillDriver if only_prefills else Driver
        attach(scheduler, kind(scheduler, config, time.monotonic, several=several))
        logger.info("batchpolicy: policy %s, preempt %s", config.label, config.preempts())


@contextmanager
def _or_no_server() -> Generator[None, None, None]:
    """End the server where what it was asked for cannot be had."""
    try:
        yield
    except BatchPolicyError as e:
        # SGLang's own way to end a server, whose other processes wait for this one.
        print(f"batchpolicy: {e}", file=sys.stderr, flush=True)
        raise RuntimeError(f"batchpolicy: {e}") from None


def before_recv_requests(receiver: Any, *args: Any, **kwargs: Any) -> Any:
    """The leader's tick joins the requests that all ranks get."""
    driver = _leading()
    if driver is None:
        return None
    local = kwargs.pop("local_reqs", None)
    if args:
        local, args = args[0], args[1:]
    kwargs["local_reqs"] = [*(local or ()), TickMessage(*driver.runner.tick())]
    return (receiver, *args), kwargs


class TickMessage:
    """A tick among the requests."""

    # SGLang looks for these on whatever it receives.
    rid = None
    http_worker_ipc = None

    def __init__(self, *tick: Any) -> None:
        self.tick = tick


def after_init_request_dispatcher(found: Any, scheduler: Any) -> None:
    """Every rank takes the tick like any request."""
    driver = getattr(scheduler, ATTRIBUTE, None)
    if isinstance(driver, PrefillDriver):
        with _or_no_server():
            probes.check_queues(scheduler)
    if driver is None or not driver.several:
        return
    dispatcher = scheduler._request_dispatcher

    def take(message: TickMessage) -> None:
        driver.ticked(Tick(*message.tick))

    scheduler._request_dispatcher += type(dispatcher)([(TickMessage, take)])
    _drivers.append(driver)


_drivers: list[Driver] = []
"""The driver of this process, if it has to agree with others."""


def _leading() -> Driver | None:
    return _drivers[-1] if _drivers and limits.is_leader() else None


def after_retraction_order(found: list[int], reqs: list[Any], *args: Any) -> list[int]:
    """Whom to keep longest, where the requests are a driver's."""
    driver = getattr(reqs[0], ATTRIBUTE, None) if reqs else None
    return found if driver is None else driver.keep_order(reqs, found)


def after_update_handlers(found: dict[str, Any], controller: Any) -> dict[str, Any]:
    """Our keys of ``/set_internal_state``."""
    driver = getattr(controller.scheduler, ATTRIBUTE, None)
    if driver is not None:
        found.update(probes.update_handlers(Live(driver)))
    return found


def after_get_internal_state(found: Any, controller: Any, *args: Any) -> Any:
    """Our part of ``/server_info``."""
    scheduler = getattr(controller, "scheduler", controller)
    driver = getattr(scheduler, ATTRIBUTE, None)
    if driver is not None:
        found.internal_state["batchpolicy"] = Live(driver).state()
    return found


def share_log() -> None:
    """Let our lines appear among the engine's, unless logging is set up for ours already."""
    for name in ("batchpolicy", "batchpolicy_sglang"):
        ours = logging.getLogger(name)
        if not ours.hasHandlers():
            ours.setLevel(logging.INFO)
