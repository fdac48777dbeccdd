"""What a study file says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from batchpolicy.component import Component
from batchpolicy_tuning.engines import engine_here
from batchpolicy_tuning.tune.sampler import SamplerName

Word = Annotated[str, Field(min_length=1)]


class WorkloadSpec(Component):
    """Requests that settings are measured on, cut into slices that the search sees or does not."""

    workload: Word
    """An embedded workload, a trace or a file of generators; files from where the study is."""
    classes: Word | None = None
    """File of classes, tenants and targets to lay over a trace."""
    load: Annotated[float, Field(ge=0.01, le=10.0)] = 0.9
    """Part of what first-come-first-served sustains with the engine's limits below."""
    slices: PositiveInt = 5
    """Slices of a trace, or seeds of what is drawn, that every trial is measured on."""
    held_out: Annotated[int, Field(ge=2)] = 10
    """Further ones, which only finalists see; under 8 nothing can be shown."""
    requests: Annotated[int, Field(ge=20, le=1_000_000)] = 500
    """Of each slice or seed; of a trace at most."""


class EngineStart(Component):
    """Limits that the engine is started with by default: those of the baseline."""

    max_num_seqs: PositiveInt = 128
    """Requests that run at once."""
    max_num_batched_tokens: PositiveInt = 2048
    """Tokens of one step."""
    long_prefill_token_threshold: NonNegativeInt = 0
    """Most prompt tokens of one request in one step; 0 for no cap."""
    watermark: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Part of the KV cache that admission leaves free."""
    kv_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Tokens that the KV cache holds; none for the profile's."""
    block_size: PositiveInt = 16
    """Tokens of a KV block."""
    prefix_cache: bool | None = None
    """Whether the KV of equal prefixes is reused; by default where the engine can."""
    async_scheduling: bool = False
    """Whether each step is planned before the results of the last, as on a GPU."""
    max_loras: PositiveInt | None = None
    """LoRA adapters that run at once."""


class Range(Component):
    """Values from ``low`` to ``high``, both included."""

    low: float
    high: float
    log: bool = False
    """Whether magnitudes count, and not differences."""
    step: PositiveFloat | None = None
    """Only every so many, from ``low`` on."""


class SpaceSpec(Component):
    """What the search may choose.

    A dimension is ``tune``, the range beside the field; a range ``{low, high, log, step}``; a
    list of values; or one value, which it keeps.
    """

    policies: dict[str, Any] = Field(default_factory=dict[str, Any])
    """By name or file: ``tune`` for all ranges beside its fields, or dimensions by key, such as
    ``urgency.weight``; nothing to leave it as it is. Several are a category."""
    limits: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Dimensions of ``max_num_seqs``, ``max_num_batched_tokens``,
    ``long_prefill_token_threshold`` and ``watermark``."""


class SearchSpec(Component):
    """How settings are searched."""

    sampler: SamplerName = "tpe"
    """Of Optuna: tpe, gp (needs torch), nsga2, random or grid."""
    trials: PositiveInt = 40
    """Settings that are measured, the baseline and given policies among them."""
    seed: NonNegativeInt = 0
    """Of all that is drawn."""
    engine: Word | None = None
    """Engine that trials run on; by default the light one that plans as the study's does."""
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 600.0
    """Longest time of one trial."""
    prune_level: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.1
    """Level of the test over slices that ends a trial early; 0 for never."""


class FinalistSpec(Component):
    """How the winner is chosen."""

    count: Annotated[int, Field(ge=1, le=20)] = 3
    """Best settings of the search that are run again on what is held out."""


class StudyFile(Component):
    """A study: what is to hold, what may be changed, and on what it is measured."""

    apiVersion: Literal["batchpolicy/v1"]
    kind: Literal["Study"]
    workloads: Annotated[tuple[WorkloadSpec, ...], Field(min_length=1)]
    engine: Word = Field(default_factory=engine_here)
    """Engine whose scheduler judges the finalists: light, vllm or sglang. By default the real one
    that is installed here, else light."""
    profile: Word = "h100-llama-3.1-8b"
    """Step cost: how long steps take."""
    limits: EngineStart = EngineStart()
    targets: tuple[str, ...] = ()
    """What must hold, such as ``ttft.p99<=500ms@class=chat`` or ``jain>=0.9``."""
    objectives: Annotated[tuple[Word, ...], Field(min_length=1)] = ("goodput",)
    """What is to be improved, the deciding one first; with several a Pareto front is shown."""
    price_per_hour: PositiveFloat | None = None
    """Of the machine, for the objective ``cost``: the price of a million output tokens."""
    policies: tuple[Word, ...] = ()
    """Policy files or names that are measured first, beside the baseline."""
    space: SpaceSpec
    search: SearchSpec = SearchSpec()
    finalists: FinalistSpec = FinalistSpec()


def study_schema() -> dict[str, Any]:
    """JSON schema of study files, for editors."""
    schema = StudyFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
