"""Whether an engine and a policy have what a case needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from typing_extensions import override

from batchpolicy.engine import Engine
from batchpolicy.policy import Policy, Step
from batchpolicy.requests import COLUMNS, QUANTILES, Column, IndexArray, Requests
from batchpolicy_tuning.cases.schema import Case
from batchpolicy_tuning.cases.setting import Setting

ENGINE = frozenset(
    {
        "priority",
        "preemption",
        "backfill",
        "chunk_budget",
        "tenant_fairness",
        "lora",
        "abort",
        "queue_limit",
        "queue_ttl",
        "prefix_cache",
        "sessions",
        "blocked_requests",
        "follow_ups",
        "encoder_budget",
    }
)
"""Needs that an engine names among its capabilities where it has them."""
RUNNER = frozenset(
    {"aging", "backfill", "admission", "queue_ttl", "queue_limit", "length_prediction"}
)
"""Needs that the runner sees to, under every policy that it runs."""
READ: Mapping[str, frozenset[str]] = {
    "priority": frozenset({"priority"}),
    "tenant_fairness": frozenset({"tenant"}),
    "weights": frozenset({"tenant"}),
    "deadline": frozenset({"deadline_s"}),
    "length_order": frozenset({"prompt_tokens", "predicted_output_tokens", "max_tokens"}),
}
"""Needs that a policy meets by reading one of these columns."""


def missing(case: Case, setting: Setting, engine: Engine) -> list[str]:
    """What the case needs and is not there, each with whose lack it is."""
    native = setting.config.native_order() is not None
    read = columns_read(setting.config.build_policy())
    lacks: list[str] = []
    for need in dict.fromkeys([*case.needs, *_implied(setting)]):
        asked = "preemption" if need == "preemption_or_reserved_seats" else need
        if need in RUNNER:
            if native and need not in engine.capabilities:
                lacks.append(f"{need} (the engine's own order)")
        elif asked in ENGINE and asked not in engine.capabilities:
            lacks.append(f"{need} (engine {engine.name})")
        elif need == "preemption_or_reserved_seats" and setting.config.preempts() == "never":
            lacks.append(f"{need} (preempt: never)")
        elif need in READ and not READ[need] & read:
            lacks.append(f"{need} (policy {setting.config.policy.name})")
    return lacks


def _implied(setting: Setting) -> Iterator[str]:
    """Needs of the requests and limits themselves."""
    yield from setting.workload.needs()
    limits = setting.limits
    if limits.max_waiting is not None:
        yield "queue_limit"
    if limits.encoder_cache_tokens is not None:
        yield "encoder_budget"
    if limits.prefix_cache:
        yield "prefix_cache"


def columns_read(policy: Policy) -> frozenset[str]:
    """Columns of requests that the policy looks at when it orders the queue.

    All of them where it fails to: then the cases will show it.
    """
    read: set[str] = set()
    rows = _Watched(read)
    try:
        policy.rank(rows, _step(rows))
        policy.keep_benefit(rows, _step(rows))
    except Exception:
        return frozenset(COLUMNS)
    return frozenset(read)


class _Watched(Requests):
    """Two requests that note which of their columns are read."""

    __slots__ = ("_read",)

    def __init__(self, read: set[str]) -> None:
        columns: dict[str, Column] = {
            name: np.full(2, default, kind) for name, (kind, default) in COLUMNS.items()
        }
        columns[QUANTILES] = np.full((2, 9), np.nan)
        columns["seq"] = np.arange(2)
        columns["slot"] = np.arange(2)
        super().__init__(columns, np.arange(2), ["a", "b"], now_s=1.0)
        self._read = read

    @override
    def take(self, rows: IndexArray | np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Requests:
        return self

    @override
    def _column(self, name: str) -> Column:
        self._read.add(name)
        return super()._column(name)


def _step(rows: Requests) -> Step:
    return Step(
        index=1,
        now_s=1.0,
        lag_steps=0,
        role="both",
        mixed=True,
        max_partial=8,
        decode_tokens=1,
        max_running=8,
        max_token_budget=512,
        total_kv_blocks=100,
        kv_block_tokens=16,
        seats=8,
        token_budget=512,
        free_kv_blocks=100,
        running=rows,
        waiting=rows,
        window=8,
        step_s=0.02,
        busy_frac=float("nan"),
        # Policies that look at lengths only to tell a lost deadline do not order by them.
        cost=None,
    )
