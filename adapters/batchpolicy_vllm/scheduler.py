"""vLLM scheduler classes that follow a policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from batchpolicy.config import PolicyConfig
from batchpolicy_vllm import seams
from batchpolicy_vllm.driver import Driver
from batchpolicy_vllm.settings import configured

logger = logging.getLogger(__name__)


class _Setup(NamedTuple):
    """What ``scheduler_class`` was given."""

    config: PolicyConfig | None = None
    clock: Callable[[], float] | None = None


# Only type checkers see a base here; ``scheduler_class`` supplies the real one.
if TYPE_CHECKING:
    _Base = seams.Scheduler
else:
    _Base = object


class PolicyMixin(_Base):
    """Put before a vLLM scheduler class, makes it follow the configured policy.

    Without configuration, and with a policy equal to one of the engine's own orders,
    every call goes straight to the base.
    """

    _setup: ClassVar[_Setup] = _Setup()
    _driver: Driver | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config, clock = self._setup
        config = config or configured(seams.additional_config(self))
        if config is None:
            return
        seams.check_scheduler(self)
        order = config.native_order()
        if order is not None:
            seams.use_native_order(self, order)
            logger.info("batchpolicy: %s is the engine's own order", config.label)
            return
        seams.refuse_ranks_of_one_mind(self)
        self._driver = Driver(self, config, clock or time.monotonic, virtual=clock is not None)
        logger.info("batchpolicy: policy %s, preempt %s", config.label, config.preempts())

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan, then let the engine schedule."""
        if self._driver is None:
            return super().schedule(*args, **kwargs)
        self._driver.before_step()
        output = super().schedule(*args, **kwargs)
        self._driver.after_step(output)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Let the engine take a step's results, then report them."""
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)
        if self._driver is not None:
            self._driver.results(scheduler_output, outputs)
        return outputs

    def add_request(self, request: Any) -> None:
        """Let the engine queue a request, then report it."""
        super().add_request(request)
        if self._driver is not None:
            self._driver.arrived(request)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        """Let the engine end requests, then report them."""
        ended = super().finish_requests(request_ids, finished_status)
        if self._driver is not None:
            self._driver.finished(seams.ended_ids(ended), seams.end_status(finished_status))
        return ended

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        """Let the engine shut down, after the predictor's thread."""
        if self._driver is not None:
            self._driver.close()
        return super().shutdown(*args, **kwargs)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        if self._driver is not None:
            self._driver.preempted(request)


def scheduler_class(
    base: type,
    config: PolicyConfig | None = None,
    clock: Callable[[], float] | None = None,
) -> type:
    """The subclass of a vLLM scheduler class that follows a policy.

    ``config`` None means the server's settings; ``clock`` a virtual clock, under which
    a request's ``arrival_time`` is taken as it is.

    Raises
    ------
    EngineUnavailable
        When the class lacks what the adapter needs.
    """
    seams.check_class(base)
    attributes = {"_setup": _Setup(config, clock), "__module__": __name__}
    return type(f"Policy{base.__name__}", (PolicyMixin, base), attributes)


def PolicyScheduler(**kwargs: Any) -> Any:
    """What ``--scheduler-cls batchpolicy_vllm.PolicyScheduler`` makes.

    A subclass of the scheduler that vLLM would have chosen: the asynchronous one where
    asynchronous scheduling is on.
    """
    seams.share_log()
    asynchronous = kwargs["vllm_config"].scheduler_config.async_scheduling
    return scheduler_class(seams.AsyncScheduler if asynchronous else seams.Scheduler)(**kwargs)
