"""Another value for one parameter of a policy that serves already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from batchpolicy.errors import ConfigError
from batchpolicy.policy import Policy


def numbers(policy: Policy) -> dict[str, float]:
    """Parameters of a policy that are numbers, under the names that a file uses."""
    return {key: value for key, _, value in _numbers(policy)}


def retuned(policy: Policy, key: str, value: object) -> Policy:
    """The same policy with its state, which it shares, and one parameter changed.

    Raises
    ------
    ConfigError
        When it has no such number, or the value is none that it takes.
    """
    fields = {name: field for name, field, _ in _numbers(policy)}
    if key not in fields:
        known = ", ".join(fields) or "none"
        raise ConfigError(f"the policy has no number {key!r}; it has: {known}.")
    field = fields[key]
    given: dict[str, Any] = {name: getattr(policy, name) for name in type(policy).model_fields}
    try:
        checked = type(policy).model_validate({**given, field: value})
    except ValidationError as e:
        raise ConfigError(f"{key} is {value!r}: {e.errors()[0]['msg']}") from None
    changed = policy.model_copy(update={field: getattr(checked, field)})
    # What was derived from the old value and kept.
    kept = vars(changed)
    for name in [n for n in kept if n not in type(policy).model_fields]:
        del kept[name]
    return changed


def _numbers(policy: Policy) -> Iterator[tuple[str, str, float]]:
    for name, field in type(policy).model_fields.items():
        value = getattr(policy, name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield field.alias or name, name, value
