"""Strict classes, each ranked by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field, field_validator
from typing_extensions import override

from batchpolicy.policy import MOST_TIERS, Policy, Ranking, Step, Tags, nested_tiers
from batchpolicy.requests import IntArray, Requests
from batchpolicy.wrappers.wrapper import Wrapper


def _ascending(bounds: tuple[int, ...]) -> tuple[int, ...]:
    if any(a >= b for a, b in pairwise(bounds)):
        raise ValueError("expected whole numbers that rise, such as [-1, 0]")
    return bounds


class Tiered(Wrapper):
    """Serve classes of priority strictly one after another, each in the inner policy's order.

    A request starts only when none of a better class could. The inner policy is asked about
    each class by itself, as if nobody else waited: a corridor inside compares the tenants
    that wait in one class, and takes turns there; a corridor outside holds over classes. Its
    counters are one for each tenant either way, so that service in one class counts in all.
    """

    tags: ClassVar[Tags] = Tags(may_starve=True)
    neutral: ClassVar[Mapping[str, Any] | None] = {"up_to": ()}

    up_to: Annotated[
        tuple[Annotated[int, Field(ge=-(2**31), lt=2**31)], ...],
        Field(max_length=MOST_TIERS - 1),
        AfterValidator(_ascending),
    ] = (0,)
    """Highest priority number of each class but the last, rising: with ``[0, 5]`` priorities up
    to 0 are the first class, 1 to 5 the second, and the rest the third."""

    @field_validator("inner")
    @classmethod
    def _has_no_classes(cls, inner: Policy) -> Policy:
        left = [inner]
        while left:
            here = left.pop()
            if isinstance(here, Tiered):
                raise ValueError("classes do not stand in classes; name all in one 'up_to'")
            left += here.inside() if isinstance(here, Wrapper) else ()
        return inner

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray:
        return nested_tiers(self._classes(requests), super().tier(requests, step))

    @override
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        classes = self._classes(waiting)
        found = np.flatnonzero(np.bincount(classes))
        if len(found) < 2:
            return super().rank(waiting, step).under(classes)
        parts: list[tuple[IntArray, Ranking]] = []
        for one in found:
            rows = np.flatnonzero(classes == one)
            part = waiting.take(rows)
            parts.append((rows, super().rank(part, replace(step, waiting=part))))
        return _joined(parts, len(waiting)).under(classes)

    def _classes(self, rows: Requests) -> IntArray:
        return np.searchsorted(np.array(self.up_to, dtype=np.int64), rows.priority)


def _joined(parts: list[tuple[IntArray, Ranking]], n: int) -> Ranking:
    """One ranking of all rows from those of parts of them."""
    benefit, tier = np.empty(n), np.zeros(n, dtype=np.int64)
    admissible, refuse = np.ones(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    for rows, part in parts:
        benefit[rows] = part.benefit
        for whole, given in (
            (tier, part.tier),
            (admissible, part.admissible),
            (refuse, part.refuse),
        ):
            if given is not None:
                whole[rows] = given
    rankings = [part for _, part in parts]
    return Ranking(
        benefit,
        tier if any(one.tier is not None for one in rankings) else None,
        admissible if any(one.admissible is not None for one in rankings) else None,
        refuse if any(one.refuse is not None for one in rankings) else None,
        min(one.wake_s for one in rankings),
    )
