"""Prefix hits of waiting requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchpolicy.policies.longest_prefix import LongestPrefix
from batchpolicy.requests import IntArray, Status
from batchpolicy.runner.hits import LOOK_UPS_A_STEP
from tests.support.policies import Arrival
from tests.support.rig import Rig


class Cache:
    """What is cached of each request, and who was asked about."""

    def __init__(self, **cached: int) -> None:
        self.cached = cached
        self.asked: list[list[str]] = []

    def prefix(self, ids: Sequence[str]) -> tuple[IntArray, IntArray]:
        self.asked.append(list(ids))
        hits = np.array([self.cached.get(i, 0) for i in ids])
        return hits, np.array([1] * len(ids))

    def held(self, ids: Sequence[str]) -> IntArray:
        return np.array([1] * len(ids))


ABLE = {"capabilities": frozenset({"prefix"})}


def test_whoever_has_most_in_the_cache_starts_first_and_equals_by_arrival() -> None:
    rig = Rig(LongestPrefix(), probe=Cache(b=40, c=80, e=40), **ABLE)
    rig.arrive("a", "b", "c", "d", "e", prompt=90)
    assert rig.plan().admit == ["c", "b", "e", "a", "d"]


def test_what_the_cache_has_won_or_lost_meanwhile_counts() -> None:
    cache = Cache(a=20)
    rig = Rig(LongestPrefix(), probe=cache, **ABLE)
    rig.arrive("a", "b", prompt=90)
    assert rig.plan().admit == ["a", "b"]
    cache.cached = {"b": 10}
    assert rig.plan().admit == ["b", "a"]


def test_new_ones_are_looked_up_first_and_then_those_longest_ago() -> None:
    cache = Cache()
    rig = Rig(LongestPrefix(), probe=cache, **ABLE)
    names = [f"r{i:02}" for i in range(LOOK_UPS_A_STEP + 10)]
    rig.arrive(*names)
    for _ in range(3):
        rig.plan()
    first, rest = names[:LOOK_UPS_A_STEP], names[LOOK_UPS_A_STEP:]
    assert cache.asked[0] == first
    assert cache.asked[1][:10] == rest
    assert cache.asked[1][10:] == first[: LOOK_UPS_A_STEP - 10]
    assert cache.asked[2][:10] == first[LOOK_UPS_A_STEP - 10 :]


def test_a_slot_of_a_new_owner_is_looked_up_anew() -> None:
    cache = Cache()
    rig = Rig(LongestPrefix(), probe=cache, max_running=1, **ABLE)
    rig.arrive("old", *(f"r{i:02}" for i in range(LOOK_UPS_A_STEP)))
    rig.plan()
    rig.runner.finished("old", Status.ABORTED)
    rig.arrive("new")
    rig.plan()
    assert cache.asked[1][:2] == [f"r{LOOK_UPS_A_STEP - 1:02}", "new"]


def test_nothing_is_asked_for_a_policy_that_does_not_go_by_it() -> None:
    cache = Cache(b=40)
    rig = Rig(Arrival(), probe=cache, **ABLE)
    rig.arrive("a", "b")
    assert rig.plan().admit == ["a", "b"]
    assert cache.asked == []
