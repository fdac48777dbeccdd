"""What a case asks of a run: one model for each shape of check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from batchpolicy.component import Component

Event = Literal["first_scheduled", "first_token", "finish"]
EndState = Literal["finished", "aborted", "expired", "rejected", "truncated"]
Ids = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1),
    BeforeValidator(lambda given: ("*",) if given == "*" else given),
]
"""Ids of requests; one that ends in ``*`` stands for all that begin so."""


class Check(Component):
    """What every check says."""

    kind: str


class Plain(Check):
    """A check that says no more than whom it is about."""

    ids: Ids = ("*",)


class EndsIn(Check):
    """States in which requests may end."""

    ids: Ids = ("*",)
    states: Annotated[tuple[EndState, ...], Field(alias="in", min_length=1)]


class TimeMax(Check):
    """Longest time that requests may take to something."""

    ids: Ids = ("*",)
    max_s: NonNegativeFloat
    percentile: Annotated[float, Field(gt=0, le=100)] | None = None
    """Of the requests, in place of each."""


class Within(Check):
    """How long after its arrival something happens to a request."""

    ids: Ids = ("*",)
    event: Event
    min_s: NonNegativeFloat = 0.0
    max_s: Annotated[float, Field(ge=0, allow_inf_nan=True)] = float("inf")

    @model_validator(mode="after")
    def _goes_forward(self) -> Self:
        if self.max_s < self.min_s:
            raise ValueError(
                f"max_s {self.max_s:g} is before min_s {self.min_s:g}; expected it to be later"
            )
        return self


class InOrder(Check):
    """Something happens to requests in the order in which they are named."""

    event: Event
    ids: Ids


class Before(Check):
    """Something happens to some requests no later than to others."""

    event: Event
    first: Ids
    then: Ids


class PreemptionsMax(Check):
    """Most preemptions, of each or in all."""

    ids: Ids = ("*",)
    max_each: NonNegativeInt | None = None
    max_total: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _says_how_many(self) -> Self:
        if self.max_each is None and self.max_total is None:
            raise ValueError("expected max_each or max_total")
        return self


class TokensMax(Check):
    """Most tokens that are computed."""

    ids: Ids = ("*",)
    max: NonNegativeInt


class MakespanMax(Check):
    """When the last request has ended."""

    max_s: NonNegativeFloat


class DeadlinesMet(Check):
    """Fewest requests that finish by their deadline."""

    ids: Ids = ("*",)
    min_count: NonNegativeInt


class ShareBetween(Check):
    """A tenant's part of the work of several in a time."""

    tenant: str
    tenants: Annotated[tuple[str, ...], Field(min_length=1)]
    window_s: tuple[NonNegativeFloat, NonNegativeFloat]
    min: Annotated[float, Field(ge=0, le=1)] = 0.0
    max: Annotated[float, Field(ge=0, le=1)] = 1.0

    @field_validator("window_s")
    @classmethod
    def _goes_forward(cls, window_s: tuple[float, float]) -> tuple[float, float]:
        start_s, end_s = window_s
        if end_s <= start_s:
            raise ValueError(f"it ends at {end_s:g}, expected a time after {start_s:g}")
        return window_s

    @model_validator(mode="after")
    def _can_hold(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max {self.max:g} is below min {self.min:g}")
        if self.tenant not in self.tenants:
            raise ValueError(f"tenant {self.tenant!r} is none of tenants")
        return self


class LoraCap(Check):
    """Most adapters that run at once."""

    max_loras: PositiveInt | None = None
    """By default the engine's."""


class NothingAfterCancel(Check):
    """No token comes out once the client has left."""

    ids: Ids = ("*",)
    slack_s: NonNegativeFloat = 0.0


class CostRatioMax(Check):
    """How the cost of a decision may grow with the queue; measured on this machine."""

    small_queue: PositiveInt
    large_queue: PositiveInt
    max: Annotated[PositiveFloat, Field(validation_alias=AliasChoices("max", "max_ratio"))]

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.large_queue <= self.small_queue:
            raise ValueError(
                f"large_queue {self.large_queue} is not above small_queue {self.small_queue}"
            )
        return self


class CpuMax(Check):
    """Processor time in the policy over the run; measured on this machine."""

    max_s: Annotated[PositiveFloat, Field(validation_alias=AliasChoices("max_s", "max"))]


class OfScenario(Check):
    """A check of one search of a table."""

    scenario: str


class Later(Check):
    """A check of what is not built yet; what it says beside is not read."""

    model_config = ConfigDict(extra="allow")


CHECKS: Mapping[str, type[Check]] = {
    "all_finish": Plain,
    "status": EndsIn,
    "ttft_max": TimeMax,
    "wait_max": TimeMax,
    "e2e_max": TimeMax,
    "itl_max": TimeMax,
    "within": Within,
    "order": InOrder,
    "before": Before,
    "preemptions_max": PreemptionsMax,
    "recomputed_tokens_max": TokensMax,
    "prefilled_tokens_max": TokensMax,
    "computed_tokens_max": TokensMax,
    "makespan_max": MakespanMax,
    "slo_met_min": DeadlinesMet,
    "share_between": ShareBetween,
    "lora_cap": LoraCap,
    "no_idle_with_work": Plain,
    "same_twice": Plain,
    "finished_or_aborted": Plain,
    "first_scheduled_in_submission_order": Plain,
    "no_output_after_cancel": NothingAfterCancel,
    "ended_kv_zero": Plain,
    "decision_cost_ratio_max": CostRatioMax,
    "policy_cpu_max": CpuMax,
    "tuning_answer": OfScenario,
    "tuning_same_twice": OfScenario,
    "tuning_no_repeat_of_failed": Check,
    "ab_verdicts": Later,
    "plugin_outcomes": Later,
}
"""What a check of each kind says."""


def patterns(check: Check) -> list[tuple[str, tuple[str, ...]]]:
    """Fields of a check that name requests, and what they name."""
    known = type(check).model_fields
    return [(name, getattr(check, name)) for name in ("ids", "first", "then") if name in known]
