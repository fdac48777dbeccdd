"""batchpolicy in the real vLLM scheduler.

``--scheduler-cls batchpolicy_vllm.PolicyScheduler`` puts the policy of the file in
``BATCHPOLICY_CONFIG`` into a server; ``scheduler_class(base)`` gives the subclass of
any scheduler class. vLLM is imported when one of them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchpolicy_vllm.scheduler import PolicyScheduler, scheduler_class

__all__ = ["PolicyScheduler", "scheduler_class"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from batchpolicy_vllm import scheduler

        return getattr(scheduler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
