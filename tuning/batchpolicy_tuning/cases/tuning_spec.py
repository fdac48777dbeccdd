"""What a case of kind ``tuning`` says: a table in place of runs, and what is to be found."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from batchpolicy.component import Component

Number = int | float


class Bound(Component):
    """The most or the least that a value may be."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _bounds_one_side(self) -> Self:
        if (self.min is None) == (self.max is None):
            raise ValueError("expected min or max, and not both")
        return self


class Objective(Component):
    """What is to be improved."""

    metric: str
    direction: Literal["maximize", "minimize"]


class Result(Component):
    """What a setting gave: numbers by name, or the reason why it gave none."""

    model_config = ConfigDict(extra="allow")

    status: Literal["ok", "failed"]
    reason: str = ""

    def numbers(self) -> dict[str, float]:
        """The values that are there."""
        extra = self.__pydantic_extra__ or {}
        return {k: float(v) for k, v in extra.items() if isinstance(v, int | float)}


class TableRow(Component):
    """A setting and what it gave."""

    params: dict[str, Number]
    result: Result


class Scenario(Component):
    """One search of the table."""

    name: str
    trials: PositiveInt
    seed: NonNegativeInt = 0
    constraints: dict[str, Bound] | None = None
    """In place of the case's."""
    result: str
    """``feasible``, ``infeasible``, or words."""
    best: dict[str, Number] | None = None


class TuningSpec(Component):
    """The table, what must hold, and the searches."""

    parameters: Annotated[dict[str, tuple[Number, ...]], Field(min_length=1)]
    constraints: dict[str, Bound]
    objective: Objective
    table: Annotated[tuple[TableRow, ...], Field(min_length=1)]
    scenarios: Annotated[tuple[Scenario, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _table_is_whole(self) -> Self:
        names = list(self.parameters)
        seen: set[tuple[Number, ...]] = set()
        for i, row in enumerate(self.table):
            if set(row.params) != set(names):
                raise ValueError(f"table[{i}].params are {list(row.params)}, expected {names}")
            key = tuple(row.params[name] for name in names)
            if key in seen:
                raise ValueError(f"table[{i}].params {row.params} are there twice")
            seen.add(key)
        expected = 1
        for values in self.parameters.values():
            expected *= len(values)
        if len(seen) != expected:
            raise ValueError(f"table has {len(seen)} settings, the parameters make {expected}")
        return self
