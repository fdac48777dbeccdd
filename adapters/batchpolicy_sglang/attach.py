"""Puts a driver between a scheduler and its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchpolicy_sglang.driver import Driver
from batchpolicy_sglang.prefill_driver import PrefillDriver
from batchpolicy_sglang.seams import batches, ends
from batchpolicy_sglang.seams.adder import follow

ATTRIBUTE = "_batchpolicy"
"""On a scheduler and on its requests: their driver."""


def attach(scheduler: Any, driver: Driver) -> None:
    """Let a scheduler follow a driver from now on; nothing outside of it changes."""
    setattr(scheduler, ATTRIBUTE, driver)
    for thing, name, around in (
        *(_of_prefills if isinstance(driver, PrefillDriver) else _of_both)(scheduler),
        (scheduler, "process_batch_result", _results),
        (scheduler.policy, "calc_priority", _order),
    ):
        setattr(thing, name, around(driver, getattr(thing, name)))
    follow(scheduler, driver)


Call = Callable[..., Any]
Around = Callable[[Driver, Call], Call]


def _of_both(scheduler: Any) -> tuple[tuple[Any, str, Around], ...]:
    return (
        (scheduler, *_before_prefills(scheduler)),
        (scheduler, "_add_request_to_queue", _queue),
        (scheduler, "get_next_batch_to_run", _schedule),
        (*ends.teller(scheduler), _abort),
    )


def _of_prefills(scheduler: Any) -> tuple[tuple[Any, str, Around], ...]:
    """Of a server that only prefills, whose driver finds out by itself who comes and goes."""
    return (
        (scheduler, "get_new_batch_prefill", _only_prefill),
        (scheduler, "get_next_disagg_prefill_batch_to_run", _schedule),
    )


def _before_prefills(scheduler: Any) -> tuple[str, Around]:
    """The call in which a step is planned, as it is settled who runs, and what goes around it."""
    # Since 0.5.23 it is told who runs.
    if batches.is_told(scheduler, "_should_defer_prefill", "running_batch"):
        return "_should_defer_prefill", _defer
    if batches.is_told(scheduler, "get_new_batch_prefill", "running_batch"):
        return "get_new_batch_prefill", _prefill
    return "get_new_batch_prefill", _prefill_of(scheduler)


def _defer(driver: Driver, native: Call) -> Call:
    def _should_defer_prefill(running_batch: Any) -> bool:
        if native(running_batch):
            return True
        return not driver.before_step(running_batch)

    return _should_defer_prefill


def _prefill(driver: Driver, native: Call) -> Call:
    def get_new_batch_prefill(running_batch: Any) -> Any:
        if driver.before_step(running_batch):
            return native(running_batch)
        return batches.no_batch(running_batch)

    return get_new_batch_prefill


def _only_prefill(driver: Driver, native: Call) -> Call:
    def get_new_batch_prefill(running_batch: Any) -> Any:
        # SGLang's own pass has to run in any case: of several ranks that share experts, all go
        # through it together.
        driver.before_step(running_batch)
        return native(running_batch)

    return get_new_batch_prefill


def _prefill_of(scheduler: Any) -> Around:
    def around(driver: Driver, native: Call) -> Call:
        def get_new_batch_prefill() -> Any:
            return native() if driver.before_step(scheduler.running_batch) else None

        return get_new_batch_prefill

    return around


def _queue(driver: Driver, native: Call) -> Call:
    def _add_request_to_queue(req: Any, *args: Any, **kwargs: Any) -> None:
        native(req, *args, **kwargs)
        setattr(req, ATTRIBUTE, driver)
        driver.queued(req)

    return _add_request_to_queue


def _schedule(driver: Driver, native: Call) -> Call:
    def get_next_batch_to_run(*args: Any, **kwargs: Any) -> Any:
        plan = native(*args, **kwargs)
        driver.after_step(batches.batch_of(plan))
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
    def send(message: Any, *args: Any, **kwargs: Any) -> Any:
        found = native(message, *args, **kwargs)
        told = ends.end_of(message)
        if told is not None:
            driver.ended(*told)
        return found

    return send


def _order(driver: Driver, native: Call) -> Call:
    def calc_priority(waiting_queue: list[Any], *args: Any, **kwargs: Any) -> Any:
        found = native(waiting_queue, *args, **kwargs)
        driver.order(waiting_queue)
        return found

    return calc_priority
