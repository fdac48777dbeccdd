"""One plan: whom to offer to the engine, whom to displace for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from batchpolicy.policy import Policy, Ranking, Step
from batchpolicy.requests import BoolArray, IntArray, Requests
from batchpolicy.runner.demand import Demand
from batchpolicy.runner.displacement import Room, just_enough, victim_order
from batchpolicy.runner.facts import EngineFacts, Plan, Probe
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.order import best_first
from batchpolicy.state import StateArray

MAX_VICTIMS_A_STEP = 16
MAX_DISPLACED_A_REQUEST = 2
"""Past this, a request is not displaced for a more urgent one any more."""
SPARE_ROWS = 16
"""Rows beyond the free seats that are offered, as the engine passes some by."""
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


@dataclass(slots=True)
class Planner:
    """Turns a ranking into a plan; remembers who was displaced and who is being passed."""

    policy: Policy
    engine: EngineFacts
    guard: Guard
    counters: Counter[str]
    probe: Probe | None
    max_bypass_s: float
    chunk: int | None = None
    """Most prompt tokens of one request in one step, where that is limited."""
    displaced: StateArray = field(default_factory=StateArray)
    """Times that each slot was displaced by a more urgent request."""
    held_since_s: dict[int, float] = field(default_factory=dict[int, float])
    """When each slot was first passed by others because its KV did not fit."""

    def arrived(self, slot: int) -> None:
        """A slot has a new owner."""
        self.displaced.put(slot, 0.0)
        self.held_since_s.pop(slot, None)

    def wants_room(self, waiting: Requests, running: Requests, now_s: float) -> bool:
        """Some waiting row presses, and some running row of a worse class may be displaced."""
        may_go = self.displaced[running.slot] < MAX_DISPLACED_A_REQUEST
        if not may_go.any():
            return False
        worst = running.priority[may_go].max()
        return bool((_pressing(waiting, now_s) & (waiting.priority < worst)).any())

    def offer(self, waiting: Requests, step: Step, left: Left) -> Plan:
        """Offer the best waiting rows, whatever runs staying where it is."""
        best, refuse = self._best(waiting, step, step.window)
        if int(best.need_kv_blocks.sum()) <= left.blocks:
            # The engine takes them in this order, and stops at its seats and tokens.
            self._placed(best.slot)
            return Plan(best.request_id, refuse=refuse)
        return self._fill(best, step, left, None)._replace(refuse=refuse)

    def displace(
        self, waiting: Requests, running: Requests, step: Step, demand: Demand, left: Left
    ) -> Plan:
        """Offer the best waiting rows, displacing for those of a more urgent class.

        ``left`` is what running rows leave when each gets all of its ``demand``; below
        0 where that is more than there is.
        """
        best, refuse = self._best(waiting, step, step.window + MAX_VICTIMS_A_STEP)
        room = _Displacer(self, running, demand, step)
        return self._fill(best, step, left, room)._replace(refuse=refuse)

    def _fill(self, best: Requests, step: Step, left: Left, room: _Displacer | None) -> Plan:
        """Plan row by row what fits; a row short of blocks may be passed for a time."""
        planned: list[int] = []
        held: list[int] = []
        closed = False
        need_blocks, prefill, slots = best.need_kv_blocks, best.prefill_tokens, best.slot
        if self.chunk is not None:
            prefill = np.minimum(prefill, self.chunk)
        pressing = _pressing(best, step.now_s)
        for place, priority in enumerate(best.priority.tolist()):
            blocks = int(need_blocks[place])
            if blocks > left.blocks and place < MAX_PROBES:
                blocks = self._probed_blocks(best, place, blocks)
            open_seat = left.seats > 0 and left.tokens > 0
            if closed or not open_seat or blocks > left.blocks:
                need = Room(
                    max(1 - left.seats, 0), max(blocks - left.blocks, 0), max(1 - left.tokens, 0)
                )
                freed = room.make_room(priority, need) if room and pressing[place] else None
                if freed is None:
                    held.append(place)
                    closed = closed or not open_seat or not self._may_be_passed(slots, place, step)
                    continue
                left.seats += freed.seats
                left.blocks += freed.blocks
                left.tokens += freed.tokens
            left.seats -= 1
            left.blocks -= blocks
            # All that it could use, as it also takes what victims of later rows give up.
            left.tokens -= int(prefill[place])
            planned.append(place)
        self._placed(slots[planned])
        ids = best.request_id
        # The engine knows better what fits, so rows held here are still offered, last.
        return Plan([ids[place] for place in planned + held], room.victims if room else [])

    def _may_be_passed(self, slots: IntArray, place: int, step: Step) -> bool:
        """A row whose KV does not fit lets others pass until its patience is over."""
        since_s = self.held_since_s.setdefault(int(slots[place]), step.now_s)
        return step.now_s - since_s < self.max_bypass_s

    def _placed(self, slots: IntArray) -> None:
        """Rows that were passed, or might have been, have a place in the plan."""
        for slot in slots.tolist() if self.held_since_s else ():
            self.held_since_s.pop(slot, None)

    def relieve(self, running: Requests, step: Step, demand: Demand, short: int) -> Plan:
        """Running rows will need ``short`` blocks too many: displace the least urgent."""
        room = _Displacer(self, running, demand, step)
        room.relieve(Room(0, short, 0))
        return Plan([], room.victims, reorder=True)

    def _best(
        self, waiting: Requests, step: Step, window: int
    ) -> tuple[Requests, list[tuple[str, str]]]:
        """The ``window`` rows that the policy ranks first, in its order, and those it refuses."""
        ranking = self.guard.rank(waiting, step)
        refuse: list[tuple[str, str]] = []
        if ranking.refuse is not None and ranking.refuse.any():
            refuse = [(i, REFUSED) for i in waiting.take(ranking.refuse).request_id]
            kept = np.flatnonzero(~ranking.refuse)
            waiting = waiting.take(kept)
            ranking = Ranking(
                ranking.benefit[kept],
                None if ranking.tier is None else ranking.tier[kept],
                None if ranking.admissible is None else ranking.admissible[kept],
            )
        if self.engine.max_loras is not None:
            placed = _has_place(waiting.lora, step.running.lora, self.engine.max_loras)
            if not placed.all():
                open_ = placed if ranking.admissible is None else placed & ranking.admissible
                ranking = ranking._replace(admissible=open_)
        if not len(waiting):
            return waiting, refuse
        return waiting.take(self._candidates(waiting, ranking, step, window)), refuse

    def _candidates(
        self, waiting: Requests, ranking: Ranking, step: Step, window: int
    ) -> IntArray:
        benefit, tier, admissible, _ = ranking
        if admissible is None:
            return best_first(benefit, tier, waiting.seq, window)
        open_rows = np.flatnonzero(admissible)
        if not len(open_rows) and not len(step.running):
            # All held and nothing running: without a step, nothing would ever change.
            self.counters["forced"] += 1
            return np.array([int(waiting.seq.argmin())])
        best = best_first(
            benefit[open_rows],
            None if tier is None else tier[open_rows],
            waiting.seq[open_rows],
            window,
        )
        return open_rows[best]

    def _probed_blocks(self, best: Requests, place: int, blocks: int) -> int:
        if self.probe is None:
            return blocks
        return int(self.probe.prefix([best.request_id[place]])[1][0])


def _has_place(waiting: IntArray, running: IntArray, most: int) -> BoolArray:
    """Rows whose LoRA adapter runs, or may start to; codes of adapters, -1 for none.

    The others would only fill the window, as the engine passes them by.
    """
    here = np.unique(running[running >= 0])
    if len(here) < most:
        return np.ones(len(waiting), dtype=np.bool_)
    return (waiting < 0) | np.isin(waiting, here)


def _pressing(waiting: Requests, now_s: float) -> BoolArray:
    """Rows that may displace: with a target only once part of it is gone, else at once.

    Displacing costs recomputation, and most seats come free in time by themselves.
    """
    target_s = waiting.ttft_slo_s
    patient = np.isfinite(target_s) & np.isnan(waiting.first_token_s)
    waited_s = now_s - waiting.arrival_s
    return ~patient | (waited_s >= PATIENCE_FRAC * target_s)


class _Displacer:
    """The victims of one plan, ordered when the first is sought."""

    def __init__(self, planner: Planner, running: Requests, demand: Demand, step: Step) -> None:
        self._planner = planner
        self._running = running
        self._demand = demand
        self._step = step
        self._order: list[int] = []
        """Rows that may go, the first to go in front, hence worse classes before better ones."""
        self._frees: list[Room] = []
        self._prepared = self._probed = False
        self.victims: list[str] = []

    def make_room(self, priority: int, need: Room) -> Room | None:
        """Displace just enough rows of classes worse than ``priority``, or nobody."""
        if not self._prepared:
            self._prepare()
        if need.blocks > 0:
            self._probe()
        classes = self._running.priority
        worse = 0
        while worse < len(self._order) and classes[self._order[worse]] > priority:
            worse += 1
        chosen = just_enough(self._frees[:worse], need) if worse else None
        # Nobody to displace: the row is held by another in front of it, and must wait with it.
        if not chosen or len(chosen) > MAX_VICTIMS_A_STEP - len(self.victims):
            return None
        if not self._can_be_freed(chosen):
            self._probe()
            return self.make_room(priority, need)
        slots = self._running.slot[[self._order[place] for place in chosen]]
        self._planner.displaced.add(slots, 1.0)
        self._planner.counters["displaced"] += len(chosen)
        return self._take(chosen)

    def relieve(self, need: Room) -> None:
        """Displace just enough rows of any class; one always stays, or nothing gets done."""
        self._prepare(bounded=False)
        self._probe()
        chosen = just_enough(self._frees[: len(self._running) - 1], need)
        self._take(chosen or [])

    def _take(self, chosen: list[int]) -> Room:
        freed = [self._frees[place] for place in chosen]
        ids = self._running.request_id
        for place in sorted(chosen, reverse=True):
            self.victims.append(ids[self._order.pop(place)])
            del self._frees[place]
        return Room(
            seats=sum(room.seats for room in freed),
            blocks=sum(room.blocks for room in freed),
            tokens=sum(room.tokens for room in freed),
        )

    def _prepare(self, *, bounded: bool = True) -> None:
        """Order the rows; ``bounded`` leaves out those that were displaced often enough."""
        self._prepared = True
        running, planner = self._running, self._planner
        tier, keep = planner.guard.keep(running, self._step)
        order = victim_order(running.priority, tier, keep, running.seq)
        may_go = np.isfinite(keep)
        if bounded:
            may_go &= planner.displaced[running.slot] < MAX_DISPLACED_A_REQUEST
        rows: list[int] = order[may_go[order]].tolist()
        self._order = rows[: 4 * MAX_VICTIMS_A_STEP]
        self._measure(running.kv_blocks)

    def _probe(self) -> None:
        """Learn exactly what each row holds; until then, what it has computed must do."""
        if self._probed or self._planner.probe is None:
            return
        self._probed = True
        held = self._running.kv_blocks.copy()
        ids = self._running.request_id
        held[self._order] = self._planner.probe.held([ids[row] for row in self._order])
        self._order = [row for row in self._order if held[row] >= 0]
        self._measure(held)

    def _can_be_freed(self, chosen: list[int]) -> bool:
        if self._probed or self._planner.probe is None:
            return True
        ids = self._running.request_id
        held = self._planner.probe.held([ids[self._order[place]] for place in chosen])
        return bool((held >= 0).all())

    def _measure(self, held: IntArray) -> None:
        # A victim also gives back the tokens and blocks that it would take in this step.
        self._frees = [
            Room(1, int(held[row] + self._demand.blocks[row]), int(self._demand.tokens[row]))
            for row in self._order
        ]
