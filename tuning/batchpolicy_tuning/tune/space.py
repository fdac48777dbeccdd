"""What a search may choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, cast

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from batchpolicy_tuning.tune.records import Value

# It tells of each study and trial; what users should know is told by ourselves.
optuna.logging.set_verbosity(optuna.logging.ERROR)

POLICY = "policy"
"""The parameter that chooses among policies, and so which other parameters there are."""
GRID_LEVELS = 4
"""Values of a range in a grid, its ends among them."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One dimension: a range, or a list of values.

    Numbers in a list are taken to be in order, so that a sampler learns from neighbours.
    """

    name: str
    low: float = math.nan
    high: float = math.nan
    log: bool = False
    integer: bool = False
    choices: tuple[Value, ...] = ()
    of: str = ""
    """The policy whose parameter it is; empty for all."""

    @property
    def ordered(self) -> bool:
        """Whether its choices are numbers, which have neighbours."""
        return all(type(one) in (int, float) for one in self.choices)

    def distribution(self) -> BaseDistribution:
        """As it stands in the storage, with the values themselves."""
        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def coded(self) -> BaseDistribution:
        """As a sampler sees it: ordered choices by their place."""
        if self.choices and self.ordered:
            return IntDistribution(0, len(self.choices) - 1)
        return self.distribution()

    def encode(self, value: Value) -> Any:
        """A value as ``coded`` has it."""
        return self.choices.index(value) if self.choices and self.ordered else value

    def decode(self, code: Any) -> Value:
        """The value that ``coded`` stands for."""
        if self.choices and self.ordered:
            return self.choices[int(code)]
        return cast(Value, code)

    def holds(self, value: Value) -> bool:
        """Whether it may take the value."""
        if self.choices:
            return value in self.choices
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        whole = not self.integer or float(value).is_integer()
        return whole and self.low <= value <= self.high

    def at(self, part: float) -> Value:
        """The value at a part, from 0 up to 1, of the way through it."""
        if self.choices:
            return self.choices[min(int(part * len(self.choices)), len(self.choices) - 1)]
        low, high = self.low, self.high
        if self.integer and not self.log:
            return min(int(low + part * (high - low + 1)), int(high))
        if self.log:
            found = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        else:
            found = low + part * (high - low)
        found = min(max(found, low), high)  # exp and log are not exact
        return round(found) if self.integer else found

    def levels(self) -> list[Value]:
        """Its values in a grid: all choices, or a few along the range."""
        if self.choices:
            return list(self.choices)
        span = int(self.high - self.low) + 1 if self.integer else GRID_LEVELS
        count = min(span, GRID_LEVELS)
        if count == 1:
            return [self.at(0.0)]
        ends = [self.at(k / (count - 1)) for k in range(count)]
        return list(dict.fromkeys(ends))

    @property
    def size(self) -> float:
        """How many values it has; inf for a range of real numbers."""
        if self.choices:
            return len(self.choices)
        if self.low == self.high:
            return 1
        return self.high - self.low + 1 if self.integer else math.inf


def _all(_: Mapping[str, Value]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Space:
    """All parameters; those of a policy exist only where that policy is chosen."""

    parameters: tuple[Parameter, ...]
    allowed: Callable[[Mapping[str, Value]], bool] = field(default=_all)
    """Refuses combinations that no engine starts with."""

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies among which it chooses; one empty name where it does not."""
        for one in self.parameters:
            if one.name == POLICY:
                return tuple(str(choice) for choice in one.choices)
        return ("",)

    def active(self, policy: Value) -> list[Parameter]:
        """The parameters that exist under a policy."""
        return [one for one in self.parameters if not one.of or one.of == policy]

    def inside(self, params: Mapping[str, Value]) -> bool:
        """Whether these are all the parameters of one of its settings, with values it has."""
        active = self.active(params.get(POLICY))
        return {one.name for one in active} == set(params) and all(
            one.holds(params[one.name]) for one in active
        )

    @property
    def conditional(self) -> bool:
        """Whether some parameters exist only under some policies."""
        return any(one.of for one in self.parameters) and len(self.policies) > 1

    @property
    def size(self) -> float:
        """How many settings there are; inf with a range of real numbers."""
        return sum(
            math.prod(one.size for one in self.active(policy) if one.name != POLICY)
            for policy in self.policies
        )

    def at(self, parts: Sequence[float]) -> dict[str, Value]:
        """The setting at a point of the unit cube, one coordinate for each parameter."""
        found: dict[str, Value] = {}
        for one, part in zip(self.parameters, parts, strict=True):
            if not one.of or one.of == found.get(POLICY):
                found[one.name] = one.at(part)
        return found

    def grid(self) -> Iterator[dict[str, Value]]:
        """Every combination of the levels of its parameters."""
        for policy in self.policies:
            active = [one for one in self.active(policy) if one.name != POLICY]
            base: dict[str, Value] = {POLICY: policy} if policy else {}
            for levels in product(*(one.levels() for one in active)):
                found = {**base, **{o.name: v for o, v in zip(active, levels, strict=True)}}
                if self.allowed(found):
                    yield found
