"""An engine that replays workloads under a virtual clock."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from batchpolicy.bench import Measurement, Progress
from batchpolicy.config import PolicyConfig
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits that the engine is started with."""

    max_num_seqs: int
    """Seats: requests that run at once."""
    max_num_batched_tokens: int
    """Tokens of one step."""
    kv_blocks: int
    """Blocks of KV cache that requests can hold."""
    kv_block_tokens: int = 16
    max_model_len: int = 131_072
    prefix_cache: bool = False
    long_prefill_token_threshold: int = 0
    """Most prompt tokens of one request in one step; 0 for no cap."""
    async_scheduling: bool = False
    """Each step is planned while the one before it runs, so without that one's results."""
    max_loras: int | None = None
    """Distinct LoRA adapters of the requests that run at once; None for an engine without."""
    chunked_prefill: bool = True
    """A prompt may be computed over several steps; else it starts only if it fits into one."""
    watermark: float = 0.0
    """Part of the KV blocks that admission leaves free for running requests."""
    max_waiting: int | None = None
    """Requests that may wait after a step; the least urgent of the others are refused."""
    encoder_cache_tokens: int | None = None
    """Encoder space of all requests in their prefill; None for no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """One step as an observer sees it."""

    index: int
    start_s: float
    duration_s: float
    tokens: Mapping[str, int]
    """Tokens scheduled, by request id, in the engine's order."""
    preempted: tuple[str, ...]
    running: int
    waiting: int
    free_kv_blocks: int


class Observer(Protocol):
    """Called after each step of a replay."""

    def __call__(self, step: StepRecord, /) -> None:
        """Take one step."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What happened to each request of a workload; columns in its order, shape ``(n,)``.

    Times are seconds from the start of the workload, ``NaN`` for what did not happen.
    """

    workload: Workload
    engine: str
    policy: str
    status: IntArray
    first_scheduled_s: FloatArray
    first_token_s: FloatArray
    finished_s: FloatArray
    longest_gap_s: FloatArray
    """Longest time between two tokens of a request; 0 with fewer than two."""
    output_tokens: IntArray
    cached_tokens: IntArray
    preemptions: IntArray
    recomputed_tokens: IntArray
    steps: int
    end_s: float
    peak_waiting: int
    """Most requests that waited after a step: 0 means that nothing ever queued."""
    counters: Mapping[str, int] = field(default_factory=dict[str, int])
    """What the runner counted: fallbacks, displaced, ..."""
    scheduler_s: float = math.nan
    """Thread time of this machine spent in the engine's scheduler; takes no part in ``digest``."""

    def digest(self) -> str:
        """SHA-256 of all columns: equal for runs that went the same way."""
        sha = hashlib.sha256(self.workload.digest().encode())
        for name in (
            "status", "first_scheduled_s", "first_token_s", "finished_s", "longest_gap_s",
            "output_tokens", "cached_tokens", "preemptions", "recomputed_tokens",
        ):  # fmt: skip
            sha.update(getattr(self, name).tobytes())
        sha.update(f"{self.steps} {self.end_s!r}".encode())
        return sha.hexdigest()


class Engine(ABC):
    """Replays a workload through one engine's scheduling, without its model."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]

    without: ClassVar[frozenset[str]] = frozenset()
    """Names of ``EngineLimits`` that it does not keep; it refuses a run that asks for them."""
    whole_block_chunks: ClassVar[bool] = False
    """It cuts prompts at the ends of KV blocks, and refuses other ``max_num_batched_tokens``."""
    scheduler_cost_notes: ClassVar[tuple[str, ...]] = ()
    """How ``scheduler_costs`` are measured, for reports."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Name and version of what is driven, for reports."""

    @abstractmethod
    def replay(
        self,
        workload: Workload,
        config: PolicyConfig | None,
        limits: EngineLimits,
        cost: StepCost,
        *,
        seed: int = 0,
        max_steps: int = 10_000_000,
        observer: Observer | None = None,
    ) -> Run:
        """Serve the workload; None as config means the engine's own order.

        Raises
        ------
        WorkloadError
            When a request cannot fit into the limits, or asks for what the engine lacks.
        StepLimitReached
            When ``max_steps`` do not serve the workload.
        """

    def scheduler_costs(
        self,
        progress: Progress,
        *,
        quick: bool = False,
    ) -> Sequence[Measurement]:
        """What a policy costs each call of this engine's scheduler; none if not measured."""
        return ()
