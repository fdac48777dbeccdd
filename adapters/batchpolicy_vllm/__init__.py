"""batchpolicy in the real vLLM scheduler.

``--scheduler-cls batchpolicy_vllm.PolicyScheduler`` puts the policy of the file in
``BATCHPOLICY_CONFIG`` into a server, ``--middleware batchpolicy_vllm.HeaderMiddleware``
lets the headers of requests reach it; ``scheduler_class(base)`` gives the subclass of
any scheduler class. vLLM is imported when it is first needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchpolicy_vllm.middleware import HeaderMiddleware
    from batchpolicy_vllm.scheduler import PolicyScheduler, scheduler_class

__all__ = ["HeaderMiddleware", "PolicyScheduler", "scheduler_class"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "middleware" if name == "HeaderMiddleware" else "scheduler"
        return getattr(import_module(f"batchpolicy_vllm.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
