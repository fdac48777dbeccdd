"""What orders by size are measured on: engine, workloads, and load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.errors import WorkloadError
from batchpolicy.profiles import load_profile
from batchpolicy.workload import Workload
from batchpolicy_tuning.saturation import Saturate, backlog
from batchpolicy_tuning.workloads.arrivals import Gamma
from batchpolicy_tuning.workloads.catalog import workload_named
from batchpolicy_tuning.workloads.generated import Generated
from batchpolicy_tuning.workloads.lengths import Lognormal
from batchpolicy_tuning.workloads.source import WorkloadSource, arrival_rate
from batchpolicy_tuning.workloads.streams import Stream

PROFILE, SEATS, STEP_TOKENS = "h100-llama-3.1-8b", 24, 2048
CHATS = "chats"
"""Name of the workload that is drawn here."""
PROMPT = Lognormal(dist="lognormal", median=80, sigma=1.3, low=4, high=2000)
OUTPUT = Lognormal(dist="lognormal", median=200, sigma=1.0, low=4, high=2000)
"""Spread like those of open chats (ShareGPT, LMSYS): means of some 170 and 310 tokens."""
TOLD, SEED = 4, 1
"""Draws that parameters come from, beside those that are measured; seed of all of them."""

COST = load_profile(PROFILE).cost
LIMITS = EngineLimits(
    max_num_seqs=SEATS,
    max_num_batched_tokens=STEP_TOKENS,
    kv_blocks=load_profile(PROFILE).kv_tokens // 16,
)
ENGINE_NOTE = (
    f"Engine: {SEATS} seats, {STEP_TOKENS:,} tokens a step, no prefix cache, profile {PROFILE}. "
    "Requests are of one class and tenant, without targets."
)
CHATS_NOTE = (
    f"{CHATS}: prompts and answers lognormal with medians of {PROMPT.median:g} and "
    f"{OUTPUT.median:g} tokens and sigmas of {PROMPT.sigma:g} and {OUTPUT.sigma:g}."
)


@dataclass(frozen=True, slots=True)
class Draws:
    """Workloads of one kind at one load."""

    name: str
    told: Sequence[Workload]
    """To choose parameters on."""
    measured: Sequence[Workload]

    @property
    def requests(self) -> int:
        """In each of those measured, on average."""
        return round(float(np.mean([len(w.requests) for w in self.measured])))

    @property
    def typical(self) -> tuple[int, float]:
        """Median of the outputs of those to choose on, and deviation of their logarithms."""
        tokens = np.array([r.output_tokens for w in self.told for r in w.requests])
        return round(float(np.median(tokens))), float(np.log(tokens).std())


def draws_at(
    engine: Engine, name: str, load: float, *, seeds: int, requests: int, cv: float = 1.0
) -> Draws:
    """``seeds`` draws of the workload, and ``TOLD`` others.

    Each is at ``load`` of what fcfs sustains on that draw, so that none is overloaded
    for longer by chance.
    ``cv`` is that of the gaps between arrivals of chats; other workloads have their own.

    Raises
    ------
    ConfigError, WorkloadError
        See ``workload_named``.
    """
    every = seeds + TOLD
    source = _source(name, every, requests, cv)
    _refuse_equal(source.replication(0, SEED))
    drawn = [_at_load(engine, _plain(source.replication(k, SEED)), load) for k in range(every)]
    return Draws(source.name, drawn[seeds:], drawn[:seeds])


def _refuse_equal(workload: Workload) -> None:
    lengths = {r.output_tokens for r in workload.requests}
    if len(lengths) == 1:
        raise WorkloadError(
            f"{workload.name}: all answers have {lengths.pop()} tokens, expected lengths that "
            "differ: predictions have nothing to tell apart."
        )


def _at_load(engine: Engine, workload: Workload, load: float) -> Workload:
    sustained = Saturate(backlog([workload], SEATS), LIMITS, COST, SEED)(engine)
    return workload.stretched(arrival_rate([workload]) / (load * sustained.requests_per_s))


def _source(name: str, draws: int, requests: int, cv: float) -> WorkloadSource:
    if name != CHATS:
        return workload_named(name, pairs=draws, requests=requests)
    stream = Stream(
        rate=1.0,
        arrivals=Gamma(process="gamma", cv=cv),
        prompt=PROMPT,
        output=OUTPUT,
        max_tokens=OUTPUT.high,
    )
    return Generated(CHATS, {CHATS: stream}, requests)


def _plain(workload: Workload) -> Workload:
    requests = (
        replace(
            r,
            priority=0,
            tenant="",
            request_class="",
            ttft_slo_s=math.inf,
            tpot_slo_s=math.inf,
            deadline_s=math.inf,
            queue_ttl_s=math.inf,
            cancel_at_s=math.inf,
        )
        for r in workload.requests
    )
    return replace(workload, requests=tuple(requests))
