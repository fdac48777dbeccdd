"""vLLM scheduler classes that follow a policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar

from batchpolicy.config import PolicyConfig
from batchpolicy_vllm import seams
from batchpolicy_vllm.driver import Driver
from batchpolicy_vllm.settings import configured

logger = logging.getLogger(__name__)


class PolicyMixin:
    """Put before a vLLM scheduler class, makes it follow the configured policy.

    Without configuration, and with a policy equal to one of the engine's own orders,
    every call goes straight to the base.
    """

    policy_config: ClassVar[PolicyConfig | None] = None
    """Set by ``scheduler_class``; None to look where a server's settings are."""
    policy_clock: ClassVar[Callable[[], float] | None] = None
    """A virtual clock; None for that of the machine."""

    _driver: Driver | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.policy_config or configured(self.vllm_config.additional_config)  # type: ignore[attr-defined]
        if config is None:
            return
        seams.check_scheduler(self)
        order = config.build_policy().native_order()
        if order is not None and config.preempts() == "never":
            seams.use_native_order(self, order)
            logger.info("batchpolicy: %s is the engine's own order", config.label)
            return
        clock = type(self).policy_clock
        self._driver = Driver(self, config, clock or time.monotonic, virtual=clock is not None)
        logger.info("batchpolicy: policy %s, preempt %s", config.label, config.preempts())

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan, then let the engine schedule."""
        if self._driver is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        self._driver.before_step()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self._driver.after_step(output)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """Let the engine take a step's results, then report them."""
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        if self._driver is not None:
            self._driver.results(outputs)
        return outputs

    def add_request(self, request: Any) -> None:
        """Let the engine queue a request, then report it."""
        super().add_request(request)  # type: ignore[misc]
        if self._driver is not None:
            self._driver.arrived(request)

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Let the engine end requests, then report them."""
        ended = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        if self._driver is not None:
            self._driver.finished(ended)
        return ended

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
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
    attributes = {
        "policy_config": config,
        "policy_clock": None if clock is None else staticmethod(clock),
        "__module__": __name__,
    }
    return type(f"Policy{base.__name__}", (PolicyMixin, base), attributes)


def PolicyScheduler(**kwargs: Any) -> Any:
    """What ``--scheduler-cls batchpolicy_vllm.PolicyScheduler`` makes.

    A subclass of the scheduler that vLLM would have chosen: the asynchronous one where
    asynchronous scheduling is on.
    """
    asynchronous = kwargs["vllm_config"].scheduler_config.async_scheduling
    return scheduler_class(seams.AsyncScheduler if asynchronous else seams.Scheduler)(**kwargs)
