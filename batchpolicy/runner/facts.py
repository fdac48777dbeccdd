"""What an adapter tells the runner, and what it gets back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from batchpolicy.policy import Limits, Role
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy.step_cost import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Ceilings and abilities of the engine, fixed at its start."""

    max_running: int
    max_token_budget: int
    total_kv_blocks: int
    kv_block_tokens: int
    clock: Callable[[], float]
    """Seconds, monotonic; read once a step, by ``PolicyRunner.tick`` alone."""
    max_prefill_chunk: int | None = None
    """Most prompt tokens of one request in one step, if the engine caps them."""
    chunks: bool = True
    """A prompt may be computed over several steps."""
    role: Role = "both"
    mixed: bool = True
    """Prefills and decodes share a step, and its tokens; else a step is one or the other."""
    max_partial: int | None = None
    """Requests that may be mid-prefill; None for as many as run."""
    max_loras: int | None = None
    """Distinct LoRA adapters of the requests that may run at once; None for no limit."""
    decode_tokens: int = 1
    """Tokens that one decode is charged: 1 plus drafts."""
    start_blocks: int = 0
    """KV blocks beside those of its prompt that must be free for a request to start."""
    live: bool = False
    """Time passes by itself: predictors work on a thread, else at their stated cost."""
    leads: bool = True
    """This rank makes the ticks; only it asks the predictor."""
    lag_steps: int = 0
    """Steps planned before their predecessors' results: 1 under async scheduling."""
    cost: StepCost | None = None
    capabilities: frozenset[str] = frozenset()

    @property
    def decode_budget_tokens(self) -> int:
        """Tokens that a decode takes of a step's budget: none where it has steps of its own."""
        return self.decode_tokens if self.mixed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What an adapter knows of a request when it arrives."""

    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    tenant: str = ""
    weight: float = 1.0
    session: str = ""
    lora: str = ""
    ttft_slo_s: float = math.inf
    tpot_slo_s: float = math.inf
    deadline_s: float = math.inf
    """On the runner's clock; read only where ``arrival_s`` is known."""
    deadline_after_s: float = math.inf
    """Seconds from the arrival to the deadline; the earlier of the two holds."""
    queue_ttl_s: float = math.inf
    predicted_output_tokens: float = math.nan
    """What the request says of itself; no predictor is asked then."""
    true_output_tokens: int | None = None
    """In replays, what it will put out: for predictors that require the truth, nobody else."""
    prompt_ids: Sequence[int] | None = field(default=None, repr=False, compare=False)
    """The engine's own list of the prompt's token ids, for predictors, which look at both ends."""
    temperature: float = math.nan
    hour: float = math.nan
    """Hour of the day at which it came, UTC, where a wall clock tells."""
    arrival_s: float | None = None
    """Known only under a virtual clock; else the tick that follows stamps it."""
    ready: bool = True


class Predictions(NamedTuple):
    """Lengths of the answers of some requests."""

    ids: list[str]
    quantiles: FloatArray
    """Of the whole outputs, at ``predictor.LEVELS``; shape ``(n, 9)``."""
    high: FloatArray
    """The quantile that the policy file reserves memory by; shape ``(n,)``."""
    seq: IntArray
    """The submissions that are meant, as ids come again; shape ``(n,)``."""


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Several as one, in their order."""
    if len(parts) == 1:
        return parts[0]
    ids, quantiles, high, seq = zip(*parts, strict=True)
    return Predictions(
        list(chain.from_iterable(ids)),
        np.concatenate(quantiles),
        np.concatenate(high),
        np.concatenate(seq),
    )


class Tick(NamedTuple):
    """What could differ between ranks in one step."""

    now_s: float
    predictions: Predictions | None = None
    """Those that have become ready since the last tick; None without any."""

    def after(self, earlier: Tick) -> Tick:
        """The same with what an earlier tick brought that no step has begun with."""
        before, now = earlier.predictions, self.predictions
        if before is None or now is None:
            return self._replace(predictions=now or before)
        return self._replace(predictions=joined([before, now]))


class Plan(NamedTuple):
    """What the engine should do in one step; ids in order."""

    admit: list[str] = []  # noqa: RUF012 - never written to
    """Waiting requests to offer, best first; the engine stops where one does not fit."""
    preempt: list[str] = []  # noqa: RUF012
    """Running requests to displace before anything else."""
    reorder: bool = False
    """Put the running requests in ``keep_order``: blocks or tokens are short."""
    refuse: list[tuple[str, str]] = []  # noqa: RUF012
    """Waiting requests to end, each with the reason for its client."""
    limits: Limits | None = None
    """Limits from now on, never above the engine's; None to leave them as they are."""
    wake_s: float = math.inf
    """When to plan anew though nothing has happened; only an engine that runs nothing need ask."""
    decode: bool = False
    """The step is for decodes: no prompt is computed, not even one that is midway."""


class Probe(Protocol):
    """Dry runs in the engine, asked only when victims are sought."""

    def prefix(self, ids: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Cached tokens, and free blocks that starting the whole prompt takes."""
        ...

    def held(self, ids: Sequence[str]) -> IntArray:
        """Blocks freed by displacing each; -1 for a request that cannot be freed now."""
        ...
