"""The victims of one plan: just enough running requests, the least urgent first."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np

from batchpolicy.policy import Step
from batchpolicy.preemption import Preemption
from batchpolicy.requests import BoolArray, IntArray, Requests
from batchpolicy.runner.demand import Demand
from batchpolicy.runner.displacement import MAX_VICTIMS_A_STEP, Going, Room, just_enough, total
from batchpolicy.runner.facts import Probe
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.victims import Standing, Victims, challenges
from batchpolicy.state import StateArray

_LOOKED_AT = 4 * MAX_VICTIMS_A_STEP
"""Rows that may go whose blocks are asked for."""


class Displacer:
    """The victims of one plan, ordered when the first is sought."""

    def __init__(
        self,
        rule: Preemption,
        running: Requests,
        demand: Demand,
        step: Step,
        guard: Guard,
        probe: Probe | None,
        displaced: StateArray,
        counters: Counter[str],
    ) -> None:
        self._rule = rule
        self._running = running
        self._demand = demand
        self._step = step
        self._guard = guard
        self._probe = probe
        self._displaced = displaced
        self._counters = counters
        self._order: list[int] = []
        """Rows that may go, the first to go in front."""
        self._groups: list[int] = []
        """Of those rows, the number of their equals, ascending."""
        self._standings: list[Standing] = []
        """Of those rows, ascending."""
        self._frees: list[Room] = []
        self._measured = False
        self._order_by: Callable[[IntArray], Going] | None = None
        """Of the blocks that rows free; None until the first victim is sought."""
        self.victims: list[str] = []

    def challenging(self, waiting: Requests) -> list[Standing] | None:
        """What waiting rows stand for, for ``make_room``; None if nobody is to go for them."""
        return challenges(waiting, self._step, self._guard, self._rule)

    def make_room(self, standing: Standing, need: Room) -> Room | None:
        """Displace just enough rows that stand strictly below ``standing``, or nobody."""
        if self._order_by is None:
            seldom = self._displaced[self._running.slot] < self._rule.max_each
            self._prepare(seldom, self._victims.order)
        below = bisect.bisect_left(self._standings, standing)
        if below and need.blocks > 0 and not self._measured:
            self._ask()
            below = bisect.bisect_left(self._standings, standing)
        chosen = just_enough(self._frees[:below], self._groups, need) if below else None
        # Nobody to displace: the row is held by another in front of it, and must wait with it.
        if not chosen or len(chosen) > MAX_VICTIMS_A_STEP - len(self.victims):
            return None
        if not self._can_be_freed(chosen):
            self._ask()
            return self.make_room(standing, need)
        slots = self._running.slot[[self._order[place] for place in chosen]]
        self._displaced.add(slots, 1.0)
        self._counters["displaced"] += len(chosen)
        return self._take(chosen)

    def relieve(self, need: Room) -> None:
        """Displace just enough rows, whoever they are; one always stays, or nothing gets done."""
        everyone = np.ones(len(self._running), dtype=np.bool_)
        self._prepare(everyone, self._victims.order_of_need)
        self._ask()
        chosen = just_enough(self._frees[: len(self._running) - 1], self._groups, need)
        self._take(chosen or [])

    def _take(self, chosen: list[int]) -> Room:
        freed = total(self._frees[place] for place in chosen)
        ids = self._running.request_id
        for place in sorted(chosen, reverse=True):
            self.victims.append(ids[self._order.pop(place)])
            del self._frees[place], self._groups[place], self._standings[place]
        return freed

    @cached_property
    def _victims(self) -> Victims:
        return Victims(self._running, self._step, self._guard, self._rule)

    def _prepare(self, may_go: BoolArray, order_by: Callable[[IntArray], Going]) -> None:
        """Put the rows in order, by the blocks that they are known to hold."""
        self._order_by = order_by
        self._sort(order_by(self._running.kv_blocks), self._running.kv_blocks, may_go)

    def _ask(self) -> None:
        """Learn exactly what each row frees; until then, what it has computed must do."""
        if self._measured or self._probe is None or self._order_by is None:
            return
        self._measured = True
        held = self._running.kv_blocks.copy()
        ids = self._running.request_id
        held[self._order] = self._probe.held([ids[row] for row in self._order])
        asked = np.zeros(len(held), dtype=np.bool_)
        asked[self._order] = True
        self._sort(self._order_by(held), held, asked & (held >= 0))

    def _sort(self, going: Going, held: IntArray, may_go: BoolArray) -> None:
        rows, groups = going
        kept = (may_go & self._victims.may_go)[rows]
        rows, self._groups = rows[kept][:_LOOKED_AT], groups[kept][:_LOOKED_AT].tolist()
        self._order = rows.tolist()
        self._standings = self._victims.standings(rows)
        # A victim also gives back the tokens and blocks that it would take in this step.
        blocks, tokens = (held + self._demand.blocks)[rows], self._demand.tokens[rows]
        self._frees = [
            Room(1, *freed) for freed in zip(blocks.tolist(), tokens.tolist(), strict=True)
        ]

    def _can_be_freed(self, chosen: list[int]) -> bool:
        if self._measured or self._probe is None:
            return True
        ids = self._running.request_id
        held = self._probe.held([ids[self._order[place]] for place in chosen])
        return bool((held >= 0).all())
