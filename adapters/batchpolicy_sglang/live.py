"""What may be changed, and seen, while a server runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batchpolicy.errors import ConfigError
from batchpolicy.policy import Limits
from batchpolicy.runner.retune import numbers, retuned

if TYPE_CHECKING:
    from batchpolicy_sglang.driver import Driver

_PREFIX = "batchpolicy_"
_LIMITS = ("max_running", "token_budget", "prefill_chunk")


class Live:
    """Numbers of a driver's policy and limits, as keys of ``/set_internal_state``.

    ``batchpolicy_lambda`` and the policy's other numbers, and ``batchpolicy_max_running``,
    ``batchpolicy_token_budget``, ``batchpolicy_prefill_chunk``. SGLang passes a change on to
    all ranks, between the same two steps.
    """

    def __init__(self, driver: Driver) -> None:
        self._runner = driver.runner

    def keys(self) -> list[str]:
        """What may be changed."""
        return [_PREFIX + name for name in (*_LIMITS, *numbers(self._runner.policy))]

    def check(self, key: str, value: object) -> None:
        """Refuse a value that cannot be taken.

        Raises
        ------
        ConfigError
            Saying why.
        """
        name = key.removeprefix(_PREFIX)
        if name not in _LIMITS:
            retuned(self._runner.policy, name, value)
        elif not isinstance(value, (int, float)) or value != int(value) or value < 1:
            raise ConfigError(f"{key} is {value!r}, expected a whole number, at least 1.")

    def apply(self, key: str, value: Any) -> None:
        """Take a value that ``check`` has let pass."""
        name = key.removeprefix(_PREFIX)
        if name in _LIMITS:
            self._runner.relimit(Limits()._replace(**{name: int(value)}))
        else:
            self._runner.retune(name, value)

    def state(self) -> dict[str, Any]:
        """What holds now, and what was counted."""
        runner = self._runner
        return {
            "policy": type(runner.policy).__name__,
            **numbers(runner.policy),
            "limits": runner.limits._asdict() | {"pause": None},
            "counters": dict(sorted(runner.counters.items())),
        }
