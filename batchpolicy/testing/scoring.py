"""Promises of the calls that score requests and change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpolicy.errors import PolicyContractError
from batchpolicy.policy import MOST_TIERS, Policy, Ranking
from batchpolicy.requests import COLUMNS, FloatArray, IntArray, Requests, Status
from batchpolicy.runner.order import best_first
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing.compare import (
    Scene,
    experienced,
    fail,
    live_through,
    pointwise_calls,
    same,
    scene,
    scene_of,
    scores,
    work_of,
)
from batchpolicy.testing.data import make_extremes
from batchpolicy.wrappers import Wrapper

_SIZES = (0, 1, 2, 257)


def check_benefit_is_one_finite_float_a_row(policy: Policy) -> None:
    """Shape ``(n,)``, float64, finite, for none, one and many rows, waiting or running."""
    for n in _SIZES:
        at = scene(n + 16)
        lived = experienced(policy, at)
        for rows in (at.waiting, at.running):
            _is_benefit(policy, "benefit", lived.benefit(rows, at.step), len(rows))


def check_tier_is_one_small_class_a_row(policy: Policy) -> None:
    """None, or shape ``(n,)``, int64, from 0 to 1,023; twice that deep where tiers nest."""
    for n in _SIZES:
        at = scene(n + 16)
        for rows in (at.waiting, at.running):
            _is_tier(policy, "tier", policy.tier(rows, at.step), len(rows))


def check_keep_benefit_is_one_number_a_row(policy: Policy) -> None:
    """None, or shape ``(n,)``, float64; ``inf`` is never displaced, NaN and ``-inf`` are not."""
    for n in _SIZES:
        at = scene(n + 8, running=n)
        kept = experienced(policy, at).keep_benefit(at.running, at.step)
        if kept is None:
            continue
        got = np.asarray(kept)
        _has_shape(policy, "keep_benefit", got, n, np.float64)
        bad = np.flatnonzero(np.isnan(got) | (got == -np.inf))
        if len(bad):
            fail(policy, "keep_benefit", f"returned {got[bad[0]]} for row {bad[0]} of {n}")


def check_who_is_displaced_does_not_displace_in_turn(policy: Policy) -> None:
    """Keeping a row is worth no less than starting it, now or once it has been displaced.

    Asked of policies that say what keeping is worth, or that displace by benefit: where
    it did not hold, two requests could push each other out for ever.
    """
    at = scene()
    lived = experienced(policy, at)
    running, tier = at.running, lived.tier(at.running, at.step)
    starting = lived.benefit(running, at.step)
    kept = lived.keep_benefit(running, at.step)
    if kept is None:
        if policy.tags.preempts != "benefit":
            return
        kept = starting
    _is_worth_keeping(policy, tier, kept, tier, starting, "to start it")
    lived.on_preempted(running, at.step)
    lost = at.table.columns
    for name in ("computed_tokens", "cached_tokens", "kv_blocks"):
        lost[name][running.slot] = 0
    lost["preemptions"][running.slot] += 1
    lost["status"][running.slot] = int(Status.WAITING)
    again = at.table.rows(running.slot)
    after = lived.benefit(again, at.step), lived.tier(again, at.step)
    _is_worth_keeping(policy, tier, kept, after[1], after[0], "to start it once displaced")


def _is_worth_keeping(
    policy: Policy,
    tier: IntArray | None,
    kept: FloatArray,
    tier_then: IntArray | None,
    starting: FloatArray,
    what: str,
) -> None:
    none = np.zeros(len(kept), dtype=np.int64)
    before = none if tier is None else tier
    then = none if tier_then is None else tier_then
    slack = 1e-9 * (1.0 + np.abs(starting))
    bad = np.flatnonzero((then < before) | ((then == before) & (starting > kept + slack)))
    if len(bad):
        row = bad[0]
        fail(
            policy,
            "keep_benefit",
            f"is {kept[row]} in tier {before[row]} for row {row}, less than the benefit of "
            f"{starting[row]} in tier {then[row]} {what}",
        )


def check_admissible_is_one_truth_value_a_row(policy: Policy) -> None:
    """None, or shape ``(n,)``, bool."""
    for n in _SIZES:
        at = scene(n, running=0)
        got = policy.admissible(at.waiting, at.step)
        if got is not None:
            _has_shape(policy, "admissible", np.asarray(got), n, np.bool_)


def check_rank_is_a_ranking_of_every_row(policy: Policy) -> None:
    """A ``Ranking`` whose parts have the shapes and types of the calls they are named after."""
    for n in _SIZES:
        at = scene(n + 16)
        got: Any = experienced(policy, at).rank(at.waiting, at.step)
        if not isinstance(got, Ranking):
            fail(policy, "rank", f"returned {type(got).__name__}, expected a Ranking")
        _is_benefit(policy, "rank", got.benefit, len(at.waiting))
        _is_tier(policy, "rank", got.tier, len(at.waiting))
        for mask in (got.admissible, got.refuse):
            if mask is not None:
                _has_shape(policy, "rank", np.asarray(mask), len(at.waiting), np.bool_)
        if np.isnan(got.wake_s):
            fail(policy, "rank", "returned wake_s nan, expected a time or inf")


def check_scoring_changes_nothing(policy: Policy) -> None:
    """Only hooks change state: asking again, and asking later, gives the same answer."""
    at = scene()
    asked, unasked = experienced(policy, at), experienced(policy, at)
    before = [call(at.running, at.step) for _, call in pointwise_calls(asked)]
    for _ in range(3):
        asked.limits(at.step)
        asked.admissible(at.waiting, at.step)
        asked.rank(at.waiting, at.step)
    for (method, call), first in zip(pointwise_calls(asked), before, strict=True):
        same(policy, method, call(at.running, at.step), first, "asked twice")
    for one in (asked, unasked):
        one.on_computed(at.running, work_of(at.running), at.step)
    same(policy, "rank", scores(asked, at), scores(unasked, at), "after being asked more often")


def check_benefit_follows_rows(policy: Policy) -> None:
    """Reordering the rows reorders the answers and changes nothing else."""
    at = scene()
    lived = experienced(policy, at)
    order = np.random.default_rng(1).permutation(len(at.waiting))
    for method, call in pointwise_calls(lived):
        whole = call(at.waiting, at.step)
        moved = call(at.waiting.take(order), at.step)
        same(policy, method, moved, None if whole is None else whole[order], "rows reordered")


def check_a_row_alone_scores_as_in_the_queue(policy: Policy) -> None:
    """Pointwise: which other rows were passed does not matter, waiting or running."""
    at = scene()
    lived = experienced(policy, at)
    for method, call in pointwise_calls(lived):
        for rows in (at.waiting, at.running):
            whole = call(rows, at.step)
            for i in range(0, len(rows), 5):
                alone = call(rows.take(np.array([i])), at.step)
                part = None if whole is None else whole[i : i + 1]
                same(policy, method, alone, part, "a row passed alone and among others")


def check_clock_origin_does_not_matter(policy: Policy) -> None:
    """Moving every time by the same amount changes nothing."""
    now, later = scene(now_s=100.0), scene(now_s=100.0 + 2.0**14)
    a, b = experienced(policy, now), experienced(policy, later)
    for (method, early), (_, late) in zip(pointwise_calls(a), pointwise_calls(b), strict=True):
        for rows, moved in ((now.waiting, later.waiting), (now.running, later.running)):
            got, expected = late(moved, later.step), early(rows, now.step)
            same(policy, method, got, expected, "all times moved by 2**14 s", tolerance=1e-6)


def check_needs_no_undeclared_prediction(policy: Policy) -> None:
    """Unless ``tags.requires`` has ``prediction``, NaN predictions are fine."""
    at = scene()
    for name in ("predicted_output_tokens", "predicted_output_high"):
        at.table.columns[name][:] = np.nan
    _stays_usable(policy, scene_of(at.table), "declare 'prediction' in tags.requires")


def check_needs_no_undeclared_step_cost(policy: Policy) -> None:
    """Unless ``tags.requires`` has ``step_cost``, ``step.cost`` may be None."""
    at = scene_of(scene().table, cost=None)
    try:
        _stays_usable(policy, at, "declare 'step_cost' in tags.requires")
    except PolicyContractError:
        raise
    except Exception as e:
        fail(
            policy,
            "benefit",
            f"raised {type(e).__name__} without step.cost: declare 'step_cost' in tags.requires",
        )


def check_extreme_values_stay_finite(policy: Policy) -> None:
    """What clients may send and engines may show gives numbers, not NaN, inf or errors."""
    at = scene_of(make_extremes())
    with np.errstate(all="ignore"):
        _stays_usable(policy, at, "extreme values")


def check_equals_are_served_in_order(policy: Policy) -> None:
    """Of two requests alike in all but arrival, the later never goes first.

    Asked of policies whose tags say that they starve nobody: where it did not
    hold, arrivals could pass a request for ever.
    """
    table = RequestTable()
    table.now_s = 100.0
    for i, age_s in enumerate((90.0, 30.0, 3.0, 0.5, 0.0)):
        table.add(
            f"r{i}", arrival_s=100.0 - age_s, tenant=1, prompt_tokens=400, max_tokens=100,
            ttft_slo_s=1.0, need_kv_blocks=25,
        )  # fmt: skip
    at = scene_of(table)
    lived = experienced(policy, at)
    got = lived.rank(at.waiting, at.step)
    order = best_first(got.benefit, got.tier, at.waiting.seq, len(at.waiting)).tolist()
    if order != sorted(order):
        fail(policy, "rank", f"serves equal requests in the order {order} of their arrivals")


def check_native_order_is_the_engines(policy: Policy) -> None:
    """``fcfs`` is by arrival, ``priority`` by priority, then arrival; as engines break ties."""
    native = policy.native_order()
    if native not in {None, "fcfs", "priority"}:
        fail(policy, "native_order", f"is {native!r}, which is no engine's order")
    at = scene(96, running=0)
    rows = at.waiting
    got = experienced(policy, at).rank(rows, at.step)
    order = best_first(got.benefit, got.tier, rows.seq, len(rows))
    classes = rows.priority if native == "priority" else np.zeros(len(rows))
    expected = np.lexsort((rows.seq, rows.arrival_s, classes))
    if native is not None and order.tolist() != expected.tolist():
        place = int(np.flatnonzero(order != expected)[0])
        fail(policy, "rank", f"says it equals {native!r} and differs from it at place {place}")


def check_columns_are_left_alone(policy: Policy) -> None:
    """Columns belong to the runner: a policy that writes to one harms all that read it."""
    at = scene()
    everyone = at.table.view()
    views = (everyone, at.waiting, at.running)
    before = [[getattr(view, name).copy() for name in COLUMNS] for view in views]
    try:
        live_through(policy := policy.model_copy(deep=True), at)
        policy.rank(at.waiting, at.step)
        for _, call in pointwise_calls(policy):
            call(at.running, at.step)
        policy.on_finished(at.running, at.step)
    except ValueError as e:
        if "read-only" not in str(e):
            raise
        fail(policy, "benefit", f"or a hook writes to a column: {e}")
    for view, kept in zip(views, before, strict=True):
        for name, old in zip(COLUMNS, kept, strict=True):
            if not np.array_equal(getattr(view, name), old, equal_nan=old.dtype.kind == "f"):
                fail(policy, "benefit", f"or a hook changes the column {name}")


def _has_shape(policy: Policy, method: str, got: np.ndarray, n: int, dtype: type) -> None:
    if got.shape != (n,):
        fail(policy, method, f"returned shape {got.shape} for {n} rows, expected ({n},)")
    if got.dtype != dtype:
        fail(policy, method, f"returned dtype {got.dtype}, expected {np.dtype(dtype)}")


def _is_benefit(policy: Policy, method: str, got: object, n: int) -> None:
    values = np.asarray(got)
    _has_shape(policy, method, values, n, np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        fail(policy, method, f"returned {values[bad[0]]} for row {bad[0]} of {n}; not finite")


def _is_tier(policy: Policy, method: str, got: object, n: int) -> None:
    if got is None:
        return
    values = np.asarray(got)
    _has_shape(policy, method, values, n, np.int64)
    most = MOST_TIERS**2 if isinstance(policy, Wrapper) else MOST_TIERS
    bad = np.flatnonzero((values < 0) | (values >= most))
    if len(bad):
        fail(policy, method, f"returned tier {values[bad[0]]}; expected 0 to {most - 1}")


def _stays_usable(policy: Policy, at: Scene, advice: str) -> None:
    lived = experienced(policy, at)
    for rows in (at.waiting, at.running):
        values = np.asarray(lived.benefit(rows, at.step))
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            row = rows.take(bad[:1])
            fail(policy, "benefit", f"returned {values[bad[0]]} for {_facts(row)}: {advice}")
    lived.rank(at.waiting, at.step)
    kept = lived.keep_benefit(at.running, at.step)
    if kept is not None and np.isnan(np.asarray(kept)).any():
        fail(policy, "keep_benefit", f"returned nan: {advice}")


def _facts(row: Requests) -> str:
    """What makes a row differ from an ordinary one."""
    facts = {name: getattr(row, name)[0] for name in COLUMNS if name not in {"slot", "seq"}}
    odd = {k: v for k, v in facts.items() if v != COLUMNS[k][1] and v == v}
    return ", ".join(f"{name}={value}" for name, value in odd.items())
