"""Requests and steps for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpolicy.policy import Step
from batchpolicy.requests import Requests, Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.step_cost import FormulaCost, StepCost

COST = FormulaCost(base_s=2e-3, weights_s=6e-3, token_s=2e-5, decode_context_token_s=1e-8)
"""A step of some GPU with some model, for policies that require ``step_cost``."""


def make_table(n: int, *, seed: int = 0, now_s: float = 100.0, running: int = 0) -> RequestTable:
    """``n`` plausible requests in order of submission, the first ``running`` of them running.

    Some lack a target, a prediction, a tenant; some were preempted. All times
    lie at distances from ``now_s`` that depend on ``n`` and ``seed`` alone.
    """
    rng = np.random.default_rng(seed)
    ages_s = np.sort(rng.exponential(4.0, n))[::-1]
    table = RequestTable(capacity=max(n, 1))
    table.now_s = now_s
    for i in range(n):
        arrival_s = now_s - ages_s[i]
        prompt = int(rng.lognormal(6, 1)) + 1
        ceiling = int(rng.integers(1, 2048))
        predicted = 1.0 + float(rng.lognormal(5, 1)) if rng.random() < 0.8 else np.nan
        table.add(
            f"r{i}",
            arrival_s=arrival_s,
            priority=int(rng.integers(-1, 4)),
            tenant=int(rng.integers(-1, 5)),
            weight=float(rng.choice([1.0, 1.0, 4.0])),
            session=int(rng.integers(-1, 8)),
            turn=int(rng.integers(0, 3)),
            prompt_tokens=prompt,
            max_tokens=ceiling,
            ttft_slo_s=float(rng.choice([0.5, 2.0, np.inf])),
            tpot_slo_s=float(rng.choice([0.05, np.inf])),
            deadline_s=now_s + float(rng.choice([-1.0, 20.0, np.inf])),
            cached_tokens=int(rng.choice([0, prompt // 2])),
            need_kv_blocks=-(-prompt // 16),
            preemptions=int(rng.random() < 0.1),
            predicted_output_tokens=predicted,
            predicted_output_high=2.0 * predicted,
        )
        if i < running:
            out = int(rng.integers(0, min(ceiling, 200)))
            started_s = arrival_s + ages_s[i] / 4
            first_s = arrival_s + ages_s[i] / 2 if out else np.nan
            done = prompt + out - 1 if out else prompt // 2
            table.set(
                f"r{i}",
                status=int(Status.RUNNING),
                computed_tokens=done,
                output_tokens=out,
                kv_blocks=-(-done // 16),
                first_scheduled_s=started_s,
                first_token_s=first_s,
                last_token_s=now_s - 0.02 if out else np.nan,
            )
    return table


def make_extremes() -> RequestTable:
    """Requests that each have one extreme value, waiting and running."""
    extremes: list[dict[str, float]] = [
        {},
        {"priority": 10**6},
        {"priority": -(10**6)},
        {"priority": 2**31 - 1},
        {"priority": -(2**31)},
        {"tenant": -1},
        {"tenant": 70_000, "session": 70_000},
        {"weight": 1e-6},
        {"weight": 1e6},
        {"ttft_slo_s": 0.0, "tpot_slo_s": 0.0},
        {"ttft_slo_s": 1e-9, "tpot_slo_s": 1e-9},
        {"deadline_s": 0.0},
        {"ttft_slo_s": 1e9, "deadline_s": 1e9},
        {"arrival_s": 1e8},
        {"arrival_s": 0.0},
        {"prompt_tokens": 1, "max_tokens": 1},
        {"prompt_tokens": 2**20, "max_tokens": 2**20, "need_kv_blocks": 2**16},
        {"cached_tokens": 100, "computed_tokens": 100},
        {"computed_tokens": 10_000, "output_tokens": 9_900},
        {"preemptions": 1000, "overtakes": 10**6},
        {"predicted_output_tokens": 1.0, "predicted_output_high": 1.0},
        {"predicted_output_tokens": 1e7, "predicted_output_high": 1e7},
        {"output_tokens": 50, "predicted_output_tokens": 1.0},
        {"ready": False},
    ]
    table = RequestTable()
    # Almost four years of waiting for the row that arrived at 0.
    table.now_s = 1.2e8
    ordinary = {
        "arrival_s": table.now_s - 1.0,
        "prompt_tokens": 100,
        "max_tokens": 100,
        "tenant": 0,
    }
    for state in (Status.WAITING, Status.RUNNING):
        for i, change in enumerate(extremes):
            table.add(f"{state.name}{i}", **{**ordinary, **change, "status": int(state)})
    return table


def rows_with(table: RequestTable, status: Status) -> Requests:
    """The rows of one status, in order of submission."""
    rows = table.view()
    return rows.take(rows.status == int(status))


def make_requests(n: int, *, seed: int = 0, now_s: float = 100.0) -> Requests:
    """``n`` plausible waiting requests; see ``make_table``."""
    return make_table(n, seed=seed, now_s=now_s).view()


def make_step(
    *,
    now_s: float = 100.0,
    waiting: Requests | None = None,
    running: Requests | None = None,
    cost: StepCost | None = COST,
    **changes: Any,
) -> Step:
    """An engine step with room to spare; ``changes`` are other fields of ``Step``."""
    none = RequestTable(capacity=1).view()
    waiting = none if waiting is None else waiting
    running = none if running is None else running
    fields: dict[str, Any] = {
        "index": 1,
        "lag_steps": 0,
        "role": "both",
        "mixed": True,
        "max_partial": 256,
        "decode_tokens": 1,
        "max_running": 256,
        "max_token_budget": 2048,
        "total_kv_blocks": 4096,
        "kv_block_tokens": 16,
        "seats": 256 - len(running),
        "token_budget": 2048 - len(running),
        "free_kv_blocks": 2048,
        "window": 272 - len(running),
        "step_s": float("nan"),
        "busy_frac": float("nan"),
    }
    return Step(now_s=now_s, waiting=waiting, running=running, cost=cost, **(fields | changes))
