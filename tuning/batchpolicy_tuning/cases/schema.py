"""A case as its file says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from batchpolicy.component import Component
from batchpolicy_tuning.cases.check_specs import Check
from batchpolicy_tuning.cases.tuning_spec import TuningSpec
from batchpolicy_tuning.workloads.jsonl import RequestRow

Kind = Literal["workload", "tuning", "ab", "plugin"]
Need = Literal[
    "priority", "preemption", "preemption_or_reserved_seats", "aging", "backfill", "admission",
    "chunk_budget", "length_order", "length_prediction", "tenant_fairness", "weights", "lora",
    "abort", "queue_limit", "queue_ttl", "deadline", "prefix_cache", "sessions",
    "blocked_requests", "encoder_budget", "scale", "tuner", "ab_harness", "plugins", "config",
]  # fmt: skip
Convention = Literal["lower_is_more_urgent", "higher_is_more_urgent"]
Invariant = Literal["I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8"]
PriorityNumber = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Same = Literal["order", "schedule", "status"]


class EngineSpec(Component):
    """Limits of the engine that the case runs on."""

    kv_capacity_tokens: PositiveInt
    block_size: PositiveInt
    max_num_seqs: PositiveInt
    max_num_batched_tokens: PositiveInt
    chunked_prefill: bool = True
    preemption: Literal["recompute"] = "recompute"
    max_waiting: PositiveInt | None = None
    max_loras: PositiveInt | None = None
    prefix_cache: bool = False
    encoder_cache_tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _holds_a_block(self) -> Self:
        if self.block_size > self.kv_capacity_tokens:
            raise ValueError(
                f"block_size {self.block_size} is above kv_capacity_tokens "
                f"{self.kv_capacity_tokens}; expected room for a block"
            )
        return self


class Timing(Component):
    """Constants of the clock: what a step takes, and more for each of its tokens."""

    step_base_s: NonNegativeFloat
    prefill_s_per_token: NonNegativeFloat = 0.0
    decode_s_per_seq: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if not (self.step_base_s or (self.prefill_s_per_token and self.decode_s_per_seq)):
            raise ValueError("the clock stands still; expected every step to take time")
        return self


class Source(Component):
    """Where the idea of a case comes from."""

    repo: str = ""
    thread: int | None = None
    kind: Literal["issue", "pull"] | None = None
    more: tuple[str, ...] = ()


class Variant(Component):
    """The same case with a change, and what must not differ."""

    name: str
    expect_same: Annotated[tuple[Same, ...], Field(min_length=1)]
    """``order`` of first starts, ``schedule`` of all steps, ``status`` at the end."""
    priority_convention: Convention | None = None
    negate_priorities: bool = False
    default_priority: PriorityNumber | None = None
    engine: EngineSpec | None = None
    timing: Timing | None = None
    operator_settings: dict[str, Any] | None = None
    requests: tuple[RequestRow, ...] | None = None


class Case(Component):
    """A file of the schema."""

    schema_version: Literal[1]
    id: Annotated[str, Field(pattern=r"^\S+$")]
    kind: Kind
    title: str = ""
    source: Source = Source()
    fault_kind: str = ""
    needs: tuple[Need, ...] = ()
    priority_convention: Convention = "lower_is_more_urgent"
    default_priority: PriorityNumber = 0
    engine: EngineSpec | None = None
    timing: Timing | None = None
    operator_settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Values of the policy file's ``bounds`` and ``queue``."""
    requests: tuple[RequestRow, ...] = ()
    variants: tuple[Variant, ...] = ()
    tuning: TuningSpec | None = None
    ab: dict[str, Any] | list[Any] | None = None
    plugin_faults: dict[str, Any] | list[Any] | None = None
    expect: str = ""
    checks: tuple[Check, ...]
    exempt_invariants: tuple[Invariant, ...] = ()
    trap: str = ""
