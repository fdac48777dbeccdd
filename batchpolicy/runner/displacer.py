"""The victims of one plan: just enough running requests, the least urgent first."""

from __future__ import annotations

import bisect
from collections import Counter

import numpy as np

from batchpolicy.policy import Step
from batchpolicy.requests import IntArray, Requests
from batchpolicy.runner.demand import Demand
from batchpolicy.runner.displacement import (
    MAX_DISPLACED_A_REQUEST,
    MAX_VICTIMS_A_STEP,
    Room,
    just_enough,
    victim_order,
)
from batchpolicy.runner.facts import Probe
from batchpolicy.runner.guard import Guard
from batchpolicy.state import StateArray


class Displacer:
    """The victims of one plan, ordered when the first is sought."""

    def __init__(
        self,
        running: Requests,
        demand: Demand,
        step: Step,
        guard: Guard,
        probe: Probe | None,
        displaced: StateArray,
        counters: Counter[str],
    ) -> None:
        self._running = running
        self._demand = demand
        self._step = step
        self._guard = guard
        self._probe = probe
        self._displaced = displaced
        self._counters = counters
        self._order: list[int] = []
        """Rows that may go, the first to go in front, hence worse classes before better ones."""
        self._classes: list[int] = []
        """Of those rows, the priority with its sign turned, hence ascending."""
        self._frees: list[Room] = []
        self._prepared = self._measured = False
        self.victims: list[str] = []

    def make_room(self, priority: int, need: Room) -> Room | None:
        """Displace just enough rows of classes worse than ``priority``, or nobody."""
        if not self._prepared:
            self._prepare()
        worse = bisect.bisect_left(self._classes, -priority)
        if worse and need.blocks > 0 and not self._measured:
            self._ask()
            worse = bisect.bisect_left(self._classes, -priority)
        chosen = just_enough(self._frees[:worse], need) if worse else None
        # Nobody to displace: the row is held by another in front of it, and must wait with it.
        if not chosen or len(chosen) > MAX_VICTIMS_A_STEP - len(self.victims):
            return None
        if not self._can_be_freed(chosen):
            self._ask()
            return self.make_room(priority, need)
        slots = self._running.slot[[self._order[place] for place in chosen]]
        self._displaced.add(slots, 1.0)
        self._counters["displaced"] += len(chosen)
        return self._take(chosen)

    def relieve(self, need: Room) -> None:
        """Displace just enough rows of any class; one always stays, or nothing gets done."""
        self._prepare(bounded=False)
        self._ask()
        chosen = just_enough(self._frees[: len(self._running) - 1], need)
        self._take(chosen or [])

    def _take(self, chosen: list[int]) -> Room:
        freed = [self._frees[place] for place in chosen]
        ids = self._running.request_id
        for place in sorted(chosen, reverse=True):
            self.victims.append(ids[self._order.pop(place)])
            del self._frees[place], self._classes[place]
        return Room(
            seats=sum(room.seats for room in freed),
            blocks=sum(room.blocks for room in freed),
            tokens=sum(room.tokens for room in freed),
        )

    def _prepare(self, *, bounded: bool = True) -> None:
        """Order the rows; ``bounded`` leaves out those that were displaced often enough."""
        self._prepared = True
        running = self._running
        tier, keep = self._guard.keep(running, self._step)
        order = victim_order(running.priority, tier, keep, running.seq)
        may_go = np.isfinite(keep)
        if bounded:
            may_go &= self._displaced[running.slot] < MAX_DISPLACED_A_REQUEST
        rows: list[int] = order[may_go[order]].tolist()
        self._order = rows[: 4 * MAX_VICTIMS_A_STEP]
        self._measure(running.kv_blocks)

    def _ask(self) -> None:
        """Learn exactly what each row holds; until then, what it has computed must do."""
        if self._measured or self._probe is None:
            return
        self._measured = True
        held = self._running.kv_blocks.copy()
        ids = self._running.request_id
        held[self._order] = self._probe.held([ids[row] for row in self._order])
        self._order = [row for row in self._order if held[row] >= 0]
        self._measure(held)

    def _can_be_freed(self, chosen: list[int]) -> bool:
        if self._measured or self._probe is None:
            return True
        ids = self._running.request_id
        held = self._probe.held([ids[self._order[place]] for place in chosen])
        return bool((held >= 0).all())

    def _measure(self, held: IntArray) -> None:
        # A victim also gives back the tokens and blocks that it would take in this step.
        rows = self._order
        self._classes = (-self._running.priority[rows]).tolist()
        blocks, tokens = (held + self._demand.blocks)[rows], self._demand.tokens[rows]
        self._frees = [
            Room(1, *freed) for freed in zip(blocks.tolist(), tokens.tolist(), strict=True)
        ]
