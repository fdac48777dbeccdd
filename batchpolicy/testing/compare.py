"""Parts that checks are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from batchpolicy.errors import PolicyContractError
from batchpolicy.policy import Policy, Step, Work
from batchpolicy.requests import FloatArray, IntArray, Requests, Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing.data import make_step, make_table, rows_with


def fail(policy: Policy, method: str, message: str) -> NoReturn:
    """Say which promise of which method was broken."""
    raise PolicyContractError(f"{type(policy).__name__}.{method} {message}")


def copy_of(policy: Policy) -> Policy:
    """The policy with its state, sharing nothing."""
    return policy.model_copy(deep=True)


def made_again(policy: Policy) -> Policy:
    """A new policy with the same parameters."""
    return type(policy).model_validate(policy.model_dump(mode="json", by_alias=True))


@dataclass(frozen=True, slots=True)
class Scene:
    """A queue, a batch and the step that sees both."""

    table: RequestTable
    waiting: Requests
    running: Requests
    step: Step


def scene(n: int = 48, *, running: int = 16, seed: int = 0, now_s: float = 100.0) -> Scene:
    """``n`` requests, the first ``running`` of them running."""
    return scene_of(make_table(n, seed=seed, now_s=now_s, running=running))


def scene_of(table: RequestTable, **changes: Any) -> Scene:
    """The table's requests, by their status."""
    waiting, running = rows_with(table, Status.WAITING), rows_with(table, Status.RUNNING)
    step = make_step(now_s=table.now_s, waiting=waiting, running=running, **changes)
    return Scene(table, waiting, running, step)


def work_of(rows: Requests, *, prefill: int = 64, output: int = 3, steps: int = 1) -> Work:
    """Work that differs from row to row."""
    some = rows.slot % 5 + 1
    return Work(prefill * some, output * some, steps, 0.02 * steps)


def live_through(policy: Policy, at: Scene) -> None:
    """Tell the policy of all arrivals, then of the running rows' admission and work."""
    everyone = at.table.view()
    policy.on_arrived(everyone, at.step)
    policy.on_admitted(at.running, at.step)
    policy.on_computed(at.running, work_of(at.running), at.step)
    policy.on_preempted(at.running.take(np.arange(0, len(at.running), 4)), at.step)
    policy.on_admitted(at.running.take(np.arange(0, len(at.running), 4)), at.step)


def experienced(policy: Policy, at: Scene) -> Policy:
    """A copy that has lived through the scene, so that its state counts."""
    lived = copy_of(policy)
    live_through(lived, at)
    return lived


def scores(policy: Policy, at: Scene) -> FloatArray:
    """Benefit of every row of the scene."""
    return np.asarray(policy.benefit(at.table.view(), at.step), dtype=np.float64)


Ask = Callable[[Requests, Step], "FloatArray | IntArray | None"]


def pointwise_calls(policy: Policy) -> list[tuple[str, Ask]]:
    """The calls whose answer for a row may not depend on the other rows."""
    return [
        ("benefit", policy.benefit),
        ("tier", policy.tier),
        ("keep_benefit", policy.keep_benefit),
    ]


def same(
    policy: Policy,
    method: str,
    got: npt.ArrayLike | None,
    expected: npt.ArrayLike | None,
    when: str,
    *,
    tolerance: float = 1e-9,
) -> None:
    """Fail, naming the first row, unless both arrays agree; None agrees with None alone."""
    if (got is None) != (expected is None):
        fail(policy, method, f"{when}: returned None once and an array once")
    if got is None or expected is None:
        return
    a, b = np.asarray(got), np.asarray(expected)
    if a.shape != b.shape:
        fail(policy, method, f"{when}: returned shape {a.shape}, then {b.shape}")
    differs = ~np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    if differs.any():
        row = int(np.flatnonzero(differs)[0])
        fail(policy, method, f"{when}: row {row} has {a[row]} instead of {b[row]}")
