"""What is kept of a trial: in the storage while a study runs, and in ``study.json``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Value = bool | int | float | str | None
"""Of a parameter."""


class Outcome(StrEnum):
    """What became of a trial; each stays what it is."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    PRUNED = "pruned"
    RUNNING = "running"
    LOST = "lost"
    """Its worker ended first; the setting is tried again."""
    WITHDRAWN = "withdrawn"
    """Another worker was at the same setting already, or there are trials enough."""


ENDED = frozenset(
    {
        Outcome.FEASIBLE,
        Outcome.INFEASIBLE,
        Outcome.FAILED,
        Outcome.TIMED_OUT,
        Outcome.PRUNED,
    }
)
"""Outcomes that say something of the setting: these are counted as trials."""
VOID = frozenset({Outcome.LOST, Outcome.WITHDRAWN})
"""Book-keeping that says nothing of the setting."""


class Model(BaseModel):
    """Plain data; infinite numbers are the string ``Infinity`` in JSON."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        use_attribute_docstrings=True,
    )


class TargetResult(Model):
    """How a trial stands to one target."""

    target: str
    value: float | None
    """As measured, in seconds or the metric's unit; None where it could not be."""
    bound: float
    met: bool
    miss: float
    """By how much the bound is exceeded, in parts of it; 0 or below where it is met."""


class Part(Model):
    """What one workload slice or seed gave."""

    instance: str
    values: Mapping[str, float]
    """By objective and by what targets bound; those that could not be measured are absent."""


class TrialRecord(Model):
    """One trial."""

    number: int
    """In the storage; numbers of void trials are missing elsewhere."""
    origin: Literal["baseline", "given", "sampled"]
    label: str
    """``baseline``, a policy file's name, or the policy."""
    key: str
    """Equal for equal settings."""
    parameters: Mapping[str, Value]
    """Of the search space; empty or partial where the setting is not in it."""
    setting: Mapping[str, Value] = Field(default_factory=dict[str, Value])
    """All that was set: the policy, its parameters, and the engine's limits."""
    outcome: Outcome
    reason: str = ""
    """Which targets were missed and by how much, or why there is no result."""
    values: Mapping[str, float] = Field(default_factory=dict[str, float])
    """Over all instances that were run, by objective and by what targets bound."""
    targets: tuple[TargetResult, ...] = ()
    parts: tuple[Part, ...] = ()
    planned: int = 0
    """Instances that a complete trial has."""
    sampler_attributes: Mapping[str, object] = Field(default_factory=dict[str, object])
    """What the sampler noted when it proposed the setting."""
    worker: str = ""
    started: str = ""
    """ISO 8601, UTC."""
    wall_s: float = 0.0

    @property
    def worst_miss(self) -> float:
        """The largest miss of a target; 0 without targets."""
        return max((one.miss for one in self.targets), default=0.0)

    @property
    def total_miss(self) -> float:
        """The misses of all targets that are not met, summed."""
        return sum(max(one.miss, 0.0) for one in self.targets)
