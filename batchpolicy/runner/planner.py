"""One plan: whom to offer to the engine, whom to displace for them, whom to refuse."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from batchpolicy import explain
from batchpolicy.policy import Step
from batchpolicy.preemption import Preemption
from batchpolicy.requests import BoolArray, IntArray, Requests
from batchpolicy.runner import adapters
from batchpolicy.runner.demand import Demand
from batchpolicy.runner.displacement import Room
from batchpolicy.runner.displacer import Displacer
from batchpolicy.runner.facts import EngineFacts, Plan, Probe
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.order import Rows
from batchpolicy.runner.overdue import Overdue
from batchpolicy.runner.peak import Peak
from batchpolicy.runner.ranked import Ranked
from batchpolicy.runner.victims import Victims
from batchpolicy.state import StateArray

MAX_PROBES = 64
REFUSED = "refused: by the policy"
PATIENCE_FRAC = 0.5
"""Part of its TTFT target that a request waits for a seat to come free before it displaces."""


@dataclass(slots=True)
class Left:
    """What is left for admission while a plan grows."""

    seats: int
    blocks: int
    tokens: int


class Drawn(NamedTuple):
    """Whom a plan is about."""

    ranked: Ranked
    best: Requests
    """The rows to plan, in order."""
    refuse: list[tuple[str, str]]
    """What the policy refuses."""


@dataclass(slots=True)
class Planner:
    """Turns a ranking into a plan; remembers who was displaced and who is being passed."""

    engine: EngineFacts
    guard: Guard
    counters: Counter[str]
    probe: Probe | None
    max_bypass_s: float
    overdue: Overdue
    max_waiting: int | None
    preemption: Preemption
    """Who may be displaced."""
    chunk: int | None = None
    """Most prompt tokens of one request in one step, where that is limited."""
    displaced: StateArray = field(default_factory=StateArray)
    """Times that each slot was displaced by a more urgent request."""
    notes: explain.Notes = field(default_factory=explain.Notes)
    """Why whoever waits was not planned."""
    late: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Which of the rows drawn last were overdue."""
    held_since_s: dict[int, float] = field(default_factory=dict[int, float])
    """When each slot was first passed by others because its KV did not fit."""

    def arrived(self, slot: int) -> None:
        """A slot has a new owner."""
        self.displaced.put(slot, 0.0)
        self.held_since_s.pop(slot, None)
        self.overdue.arrived(slot)

    def admitted(self, slots: list[int], now_s: float) -> None:
        """Waiting rows have taken a seat."""
        for slot in self.overdue.admitted(slots, now_s):
            # Displaced once more at most.
            times = max(self.displaced.at(slot), self.preemption.max_each - 1.0)
            self.displaced.put(slot, times)

    def is_full(self, waiting: int) -> bool:
        """More wait than may, unless some of them can start."""
        return self.max_waiting is not None and waiting > self.max_waiting

    def wanting_room(self, waiting: Requests, running: Requests, now_s: float) -> int:
        """How many waiting rows press, and might stand above one that may go."""
        may_go = self.displaced[running.slot] < self.preemption.max_each
        if not may_go.any():
            return 0
        if self.preemption.by == "benefit":
            return len(waiting)
        worst = running.priority[may_go].max()
        return int((_pressing(waiting, now_s) & (waiting.priority < worst)).sum())

    def draw(self, waiting: Requests, step: Step) -> Drawn:
        """The best waiting rows in their order, and those that the policy refuses."""
        ranked, refuse = self._ranked(waiting, step)
        rows = self._order(ranked, step)
        best = ranked.waiting.take(rows)
        late = self.overdue.chosen(best.slot)
        self.notes.drawn(step, ranked.waiting, best, late, ranked.held_for(rows, step.window))
        return Drawn(ranked, best, refuse)

    def offer(self, drawn: Drawn, step: Step, left: Left, peak: Peak | None) -> Plan:
        """Offer the rows drawn, whatever runs staying where it is.

        ``peak`` is that of the running rows, None where KV cannot run out.
        """
        best = drawn.best
        if peak is None and int(best.need_kv_blocks.sum()) <= left.blocks:
            # The engine takes them in this order, and stops at its seats and tokens.
            self._placed(best.slot)
            plan, starting = Plan(best.request_id), self._starting(best, left)
        else:
            plan, starting = self._fill(best, step, left, peak, None)
        return self._whole(plan, drawn, starting, step)

    def displace(
        self,
        drawn: Drawn,
        running: Requests,
        step: Step,
        demand: Demand,
        left: Left,
        peak: Peak | None,
    ) -> Plan:
        """Offer the rows drawn, displacing for those that stand above running ones.

        ``left`` is what running rows leave when each gets all of its ``demand``; below
        0 where that is more than there is.
        """
        room = self._displacer(running, demand, step)
        plan, starting = self._fill(drawn.best, step, left, peak, room)
        return self._whole(plan, drawn, starting, step)

    def _fill(
        self,
        best: Requests,
        step: Step,
        left: Left,
        peak: Peak | None,
        room: Displacer | None,
    ) -> tuple[Plan, IntArray]:
        """Plan row by row what fits, and its slots; a row short of blocks may be passed."""
        planned: list[int] = []
        held: list[int] = []
        closed = barred = False
        need_blocks, prefill, slots = best.need_kv_blocks, best.prefill_tokens, best.slot
        if self.chunk is not None:
            prefill = np.minimum(prefill, self.chunk)
        standings = room.challenging(best) if room else None
        # Where benefits are compared, what waiting gains is in them.
        pressing = None if self.preemption.by == "benefit" else _pressing(best, step.now_s)
        block_tokens = self.engine.kv_block_tokens
        for place in range(len(best)):
            if closed and not standings:
                held.extend(range(place, len(best)))
                break
            blocks = int(need_blocks[place])
            if blocks > left.blocks and place < MAX_PROBES:
                blocks = self._probed_blocks(best, place, blocks)
            open_seat = left.seats > 0 and left.tokens > 0
            if closed or not open_seat or blocks > left.blocks:
                need = Room(
                    max(1 - left.seats, 0), max(blocks - left.blocks, 0), max(1 - left.tokens, 0)
                )
                freed = None
                seeks = not barred and (pressing is None or pressing[place])
                if room and standings and seeks:
                    freed = room.make_room(standings[place], need)
                if freed is None:
                    held.append(place)
                    # Nobody passes an overdue row, also not by displacing others.
                    barred = barred or self.overdue.is_chosen(int(slots[place]))
                    is_short = open_seat and not closed
                    closed = closed or not open_seat or not self._may_be_passed(slots, place, step)
                    if is_short:
                        self.notes.short(place, explain.KV, stops=closed)
                    continue
                left.seats += freed.seats
                left.blocks += freed.blocks
                left.tokens += freed.tokens
            elif peak is not None and not peak.takes(blocks * block_tokens, place):
                held.append(place)
                barred = barred or self.overdue.is_chosen(int(slots[place]))
                closed = not self._may_be_passed(slots, place, step)
                self.notes.short(place, explain.KV_LATER, stops=closed)
                continue
            left.seats -= 1
            left.blocks -= blocks
            # All that it could use, as it also takes what victims of later rows give up.
            left.tokens -= int(prefill[place])
            planned.append(place)
        self._placed(slots[planned])
        ids = best.request_id
        # The engine knows better what fits now, so rows held here are still offered, last; but
        # not what fits later, so that where that matters it gets only those that were looked at.
        looks_ahead = peak is not None and (planned or len(step.running))
        admit = [ids[place] for place in (planned if looks_ahead else planned + held)]
        return Plan(admit, room.victims if room else []), slots[planned]

    def _may_be_passed(self, slots: IntArray, place: int, step: Step) -> bool:
        """A row whose KV does not fit lets others pass until its patience is over."""
        slot = int(slots[place])
        since_s = self.held_since_s.setdefault(slot, step.now_s)
        return not self.overdue.is_chosen(slot) and step.now_s - since_s < self.max_bypass_s

    def _placed(self, slots: IntArray) -> None:
        """Rows that were passed, or might have been, have a place in the plan."""
        for slot in slots.tolist() if self.held_since_s else ():
            self.held_since_s.pop(slot, None)

    def relieve(self, running: Requests, step: Step, demand: Demand, short: int) -> Plan:
        """Running rows will need ``short`` blocks too many: displace the least urgent."""
        room = self._displacer(running, demand, step)
        room.relieve(Room(0, short, 0))
        return Plan([], room.victims, reorder=True)

    def _displacer(self, running: Requests, demand: Demand, step: Step) -> Displacer:
        return Displacer(
            self.preemption,
            running,
            demand,
            step,
            self.guard,
            self.probe,
            self.displaced,
            self.counters,
        )

    def keep_order(self, running: Requests, step: Step) -> Rows:
        """Running rows, best first: decodes, then prefills, each in reverse of who would go."""
        victims = Victims(running, step, self.guard, self.preemption)
        best = victims.order_of_need(running.kv_blocks).rows[::-1]
        return best[np.argsort(running.prefill_tokens[best] > 0, kind="stable")]

    def _ranked(self, waiting: Requests, step: Step) -> tuple[Ranked, list[tuple[str, str]]]:
        """The waiting rows with the policy's ranking, and those that it refuses."""
        ranking = self.guard.rank(waiting, step)
        refuse: list[tuple[str, str]] = []
        if ranking.refuse is not None and ranking.refuse.any():
            # A client that has part of its answer gets the rest.
            gone = ranking.refuse & np.isnan(waiting.first_scheduled_s)
            refuse = [(i, REFUSED) for i in waiting.take(gone).request_id]
            kept = np.flatnonzero(~gone)
            waiting, ranking = waiting.take(kept), ranking.take(kept)
        return Ranked(waiting, ranking, ranking.admissible), refuse

    def _order(self, ranked: Ranked, step: Step) -> Rows:
        """The rows to plan, in order: overdue ones, then the best."""
        waiting = ranked.waiting
        late = self.late = self.overdue.rows(waiting, step.now_s)
        if not len(waiting):
            return np.empty(0, dtype=np.intp)
        if self.engine.max_loras is not None:
            used = adapters.in_use(step.running)
            placed = adapters.has_place(waiting.lora, used, self.engine.max_loras)
            if (late & ~placed).any():
                placed &= adapters.to_make_place(waiting.lora, used)
            ranked, late = ranked.only(placed), late & placed
            self.notes.placed = placed
        if late.any():
            return self.overdue.order(ranked, late, step.window)
        if ranked.open is not None and not ranked.open.any() and not len(step.running):
            if step.now_s < ranked.ranking.wake_s < math.inf:
                return np.empty(0, dtype=np.intp)
            # All held, nothing running and no end to it: nothing would ever change.
            self.counters["forced"] += 1
            return np.array([int(waiting.seq.argmin())])
        return ranked.best(None, step.window)

    def _starting(self, best: Requests, left: Left) -> IntArray:
        """Slots of the rows that seats and tokens are left for."""
        if self.max_waiting is None:
            return best.slot[:0]
        prefill = best.prefill_tokens
        if self.chunk is not None:
            prefill = np.minimum(prefill, self.chunk)
        before = np.cumsum(prefill) - prefill
        fit = int(np.searchsorted(before, left.tokens))
        return best.slot[: max(min(left.seats, fit), 0)]

    def _whole(self, plan: Plan, drawn: Drawn, starting: IntArray, step: Step) -> Plan:
        """The plan with whom it refuses, and when to plan anew."""
        wake_s = drawn.ranked.ranking.wake_s
        if wake_s < math.inf:
            # Who is overdue by then goes whatever the policy says.
            late_s = self.overdue.next_s(drawn.ranked.waiting)
            plan = plan._replace(wake_s=late_s if step.now_s < late_s < wake_s else wake_s)
        refuse = drawn.refuse + self._beyond(drawn.ranked, starting)
        if not refuse:
            return plan
        gone = {i for i, _ in refuse}
        return plan._replace(admit=[i for i in plan.admit if i not in gone], refuse=refuse)

    def _beyond(self, ranked: Ranked, starting: IntArray) -> list[tuple[str, str]]:
        """Rows that are too many to wait: the last in rank that never started, overdue ones last.

        Overdue rows go before all others, whatever their rank.
        """
        waiting, most = ranked.waiting, self.max_waiting
        if most is None or len(waiting) - len(starting) <= most:
            return []
        stays = ~np.isnan(waiting.first_scheduled_s) | np.isin(waiting.slot, starting)
        too_many = len(waiting) - len(starting) - most
        rows = ranked.worst(~stays & ~self.late, too_many)
        if len(rows) < too_many and self.late.any():
            late = ranked.worst(~stays & self.late, too_many - len(rows))
            rows = np.concatenate([rows, late])
        return [(i, f"refused: {most} may wait") for i in waiting.take(rows).request_id]

    def _probed_blocks(self, best: Requests, place: int, blocks: int) -> int:
        if self.probe is None:
            return blocks
        return int(self.probe.prefix([best.request_id[place]])[1][0])


def _pressing(waiting: Requests, now_s: float) -> BoolArray:
    """Rows that may displace: with a target only once part of it is gone, else at once.

    Displacing costs recomputation, and most seats come free in time by themselves.
    """
    target_s = waiting.ttft_slo_s
    patient = np.isfinite(target_s) & np.isnan(waiting.first_token_s)
    waited_s = now_s - waiting.arrival_s
    return ~patient | (waited_s >= PATIENCE_FRAC * target_s)
