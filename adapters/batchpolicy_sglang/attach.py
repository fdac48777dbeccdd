"""Puts a driver between a scheduler and its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchpolicy.requests import Status
from batchpolicy_sglang.driver import Driver
from batchpolicy_sglang.seams import ends
from batchpolicy_sglang.seams.adder import adder_class

ATTRIBUTE = "_batchpolicy"
"""On a scheduler and on its requests: their driver."""


def attach(scheduler: Any, driver: Driver) -> None:
    """Let a scheduler follow a driver from now on; nothing outside of it changes."""
    setattr(scheduler, ATTRIBUTE, driver)
    for name, around in (
        ("_should_defer_prefill", _defer),
        ("_add_request_to_queue", _queue),
        ("get_next_batch_to_run", _schedule),
        ("process_batch_result", _results),
        ("send_abort_output", _abort),
    ):
        setattr(scheduler, name, around(driver, getattr(scheduler, name)))
    policy = scheduler.policy
    policy.calc_priority = _order(driver, policy.calc_priority)
    adders: dict[type, type] = {}
    native = scheduler.get_prefill_adder_class

    def get_prefill_adder_class() -> type:
        base = native()
        if base not in adders:
            adders[base] = adder_class(base, driver)
        return adders[base]

    scheduler.get_prefill_adder_class = get_prefill_adder_class


Call = Callable[..., Any]


def _defer(driver: Driver, native: Call) -> Call:
    def _should_defer_prefill(running_batch: Any) -> bool:
        if native(running_batch):
            return True
        return not driver.before_step(running_batch)

    return _should_defer_prefill


def _queue(driver: Driver, native: Call) -> Call:
    def _add_request_to_queue(req: Any, *args: Any, **kwargs: Any) -> None:
        native(req, *args, **kwargs)
        setattr(req, ATTRIBUTE, driver)
        driver.queued(req)

    return _add_request_to_queue


def _schedule(driver: Driver, native: Call) -> Call:
    def get_next_batch_to_run(*args: Any, **kwargs: Any) -> Any:
        plan = native(*args, **kwargs)
        driver.after_step(plan.batch_to_run)
        return plan

    return get_next_batch_to_run


def _results(driver: Driver, native: Call) -> Call:
    def process_batch_result(batch: Any, result: Any) -> Any:
        live, before = driver.before_results(batch)
        found = native(batch, result)
        driver.results(live, before)
        return found

    return process_batch_result


def _abort(driver: Driver, native: Call) -> Call:
    def send_abort_output(message: Any, req: Any) -> None:
        native(message, req)
        driver.ended(req.rid, (ends.end_of(message) or (req.rid, Status.ABORTED))[1])

    return send_abort_output


def _order(driver: Driver, native: Call) -> Call:
    def calc_priority(waiting_queue: list[Any], *args: Any, **kwargs: Any) -> Any:
        found = native(waiting_queue, *args, **kwargs)
        driver.order(waiting_queue)
        return found

    return calc_priority
