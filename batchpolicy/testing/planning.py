"""Promises of the calls that a plan is made of: ``rank`` and ``limits``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from batchpolicy.policy import Limits, Policy, Ranking
from batchpolicy.requests import IntArray
from batchpolicy.runner.order import best_first
from batchpolicy.testing.compare import experienced, fail, live_through, made_again, same, scene


def check_limits_are_whole_numbers(policy: Policy) -> None:
    """A ``Limits`` of whole numbers from 1, or None where nothing is asked."""
    at = scene()
    got: Any = experienced(policy, at).limits(at.step)
    if not isinstance(got, Limits):
        fail(policy, "limits", f"returned {type(got).__name__}, expected Limits")
    for name, value in zip(Limits._fields, got, strict=True):
        if isinstance(value, np.ndarray):
            continue  # a mask over running rows, not a number
        if value is not None and (type(value) is not int or value < 1):
            fail(policy, "limits", f"returned {name} {value!r}, expected a whole number from 1")


def check_rank_follows_rows(policy: Policy) -> None:
    """The order and the masks do not depend on the order in which the table holds the rows.

    That order is an accident of which requests left; equals go by submission.
    """
    at = scene(96, running=0)
    lived = experienced(policy, at)
    whole = lived.rank(at.waiting, at.step)
    shuffled = np.random.default_rng(1).permutation(len(at.waiting))
    moved_rows = at.waiting.take(shuffled)
    moved = lived.rank(moved_rows, replace(at.step, waiting=moved_rows))
    window = at.step.window
    expected = at.waiting.seq[_first(whole, at.waiting.seq, window)]
    got = moved_rows.seq[_first(moved, moved_rows.seq, window)]
    if got.tolist() != expected.tolist():
        place = int(np.flatnonzero(got != expected)[0]) if len(got) == len(expected) else 0
        fail(policy, "rank", f"rows reordered: the order differs from place {place} on")
    for name in ("admissible", "refuse"):
        before, after = getattr(whole, name), getattr(moved, name)
        in_order = None if before is None else before[shuffled]
        same(policy, "rank", after, in_order, f"rows reordered: {name}")


def check_the_same_events_give_the_same_plans(policy: Policy) -> None:
    """Two instances told alike rank and limit alike, bit for bit: ranks of one server do."""
    at = scene()
    one, two = made_again(policy), made_again(policy)
    for each in (one, two):
        live_through(each, at)
    first, second = one.rank(at.waiting, at.step), two.rank(at.waiting, at.step)
    for name in ("benefit", "tier", "admissible", "refuse"):
        got, expected = getattr(second, name), getattr(first, name)
        same(policy, "rank", got, expected, f"two instances: {name}", tolerance=0.0)
    if repr(one.limits(at.step)) != repr(two.limits(at.step)):
        fail(policy, "limits", "differ between two instances that were told alike")


def _first(ranking: Ranking, seq: IntArray, k: int) -> IntArray:
    """The open rows that a plan would be about, in order."""
    n = len(ranking.benefit)
    rows = np.arange(n) if ranking.admissible is None else np.flatnonzero(ranking.admissible)
    tier = None if ranking.tier is None else ranking.tier[rows]
    return rows[best_first(ranking.benefit[rows], tier, seq[rows], k)]
