"""Policies that random workloads are served under."""

from __future__ import annotations

from typing import Any

from batchpolicy.config import (
    Bounds,
    LimitSettings,
    Memory,
    PolicyConfig,
    PolicySpec,
    PredictorSpec,
    Queue,
)
from batchpolicy.preemption import Preemption


def _config(name: str, params: dict[str, Any] | None = None, **parts: object) -> PolicyConfig:
    spec = PolicySpec(name=name, params=params or {})
    return PolicyConfig.model_validate({"policy": spec, **parts})


FCFS = _config("fcfs")
STRICT_PRIORITY = PolicyConfig(
    policy=PolicySpec(name="priority", params={"ageing_s": "inf"}), preempt="never"
)
BENEFIT = _config("benefit")

NATIVE: tuple[PolicyConfig | None, ...] = (None, FCFS, STRICT_PRIORITY)
"""Orders of the engine's own."""
PLANNED = (
    BENEFIT,
    _config(
        "benefit",
        {"corridor_tokens": 100.0, "prices": {"recent_steps": 20.0}},
        preempt="never",
        bounds=Bounds(max_bypass_s=0.0),
    ),
    _config("edf", {"lost": "refuse"}, preempt="class"),
    _config("shortest-remaining"),
    _config("shortest-first", preempt=Preemption(by="benefit", margin=3.0, max_each=1)),
    _config("priority"),
    _config(
        "benefit",
        queue=Queue(ttl_s=0.4),
        limits=LimitSettings(max_num_seqs=3, max_num_batched_tokens=40, prefill_chunk=24),
    ),
    _config("fcfs", preempt="class", queue=Queue(ttl_s=1.0)),
    _config("batchpolicy_tuning.conformance.restless:Restless", preempt="class"),
    _config("virtual-token-counter", memory=Memory(look_ahead=False)),
    _config("benefit", predictor=PredictorSpec(name="noisy-oracle", params={"log_sigma": 0.5})),
    _config("fcfs", memory=Memory(first_guess_tokens=16), predictor=PredictorSpec(name="oracle")),
    _config("benefit", bounds=Bounds(max_wait_s=0.5, max_overtakes=3), queue=Queue(max_waiting=6)),
    _config(
        "priority",
        bounds=Bounds(max_wait_s=0.2, turns="none"),
        limits=LimitSettings(long_prompts_give_way=False),
    ),
    _config("corridor", {"tokens": 100.0, "inner": "shortest-first"}),
    _config(
        "batch-forming",
        {"min_waiting": 3, "max_hold_s": 0.3, "hold_idle": True, "busy_frac": 0.8, "inner": "edf"},
        queue=Queue(ttl_s=0.4),
    ),
    _config(
        "tiered",
        {"inner": {"name": "batch-forming", "max_hold_s": 5.0, "hold_idle": True}},
        bounds=Bounds(max_wait_s=0.5),
    ),
    _config("fcfs", preempt="never", limits=LimitSettings(tpot_target_s=0.012)),
    _config("edf", memory=Memory(look_ahead=False), limits=LimitSettings(tpot_target_s=0.03)),
    # Its predictions arrive a step late.
    _config(
        "shortest-remaining", preempt="benefit", predictor=PredictorSpec(name="tenant-history")
    ),
    _config("multilevel-feedback", {"quantum_tokens": 24, "promote_s": 0.4}),
    _config("least-attained-service", {"quantum_tokens": 24, "promote_s": 0.4}),
    _config("boosted-arrival", {"boost_tokens": 100.0}, preempt="benefit"),
)
"""What the policy runner plans."""


def policy_of(seed: int) -> PolicyConfig | None:
    """Orders of the engine's own and planned ones take turns."""
    configs = NATIVE if seed % 2 else PLANNED
    return configs[seed // 2 % len(configs)]
