"""What a step does about the queue: rest, offer, displace, or relieve the running requests."""

from __future__ import annotations

from collections import Counter

import numpy as np

from batchpolicy import explain
from batchpolicy.policy import Step
from batchpolicy.requests import Requests
from batchpolicy.runner.decode_turns import DecodeTurns
from batchpolicy.runner.demand import Demand, demand
from batchpolicy.runner.displacement import MAX_VICTIMS_A_STEP
from batchpolicy.runner.facts import EngineFacts, Plan
from batchpolicy.runner.forecast import Forecast
from batchpolicy.runner.giving_way import chunk_giving_way
from batchpolicy.runner.hits import Hits
from batchpolicy.runner.ledger import Ledger
from batchpolicy.runner.limits import StepLimits
from batchpolicy.runner.lull import Lull
from batchpolicy.runner.peak import Peak
from batchpolicy.runner.planner import Drawn, Left, Planner
from batchpolicy.runner.step_maker import StepMaker

_NOTHING = Plan()
_DECODES = Plan(decode=True)
HELD_STEPS = 16
"""Steps without a change in which admission is not tried again after all were held for KV."""
FRESH_STEPS = 16
"""Steps for which predictions of running rows stay as they are, where nobody is displaced."""
VAIN_STEPS = 8
"""Steps without a change in which displacement is not tried again after it was in vain."""


class Triage:
    """Finds out what a step needs, at no more cost than that takes, and has it planned."""

    def __init__(
        self,
        engine: EngineFacts,
        ledger: Ledger,
        planner: Planner,
        steps: StepMaker,
        limits: StepLimits,
        forecast: Forecast | None,
        hits: Hits | None,
        turns: DecodeTurns | None,
        counters: Counter[str],
        *,
        long_prompts_give_way: bool,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._planner = planner
        self._steps = steps
        self._limits = limits
        self._forecast = forecast
        self._hits = hits
        self._turns = turns
        self._counters = counters
        self._displace = planner.preemption.by != "never"
        self._by_class = planner.preemption.by == "class"
        self._gives_way = engine.chunks and long_prompts_give_way
        self._held = Lull(HELD_STEPS)
        """Of admission, when all were held for want of KV to come."""
        self._stale = 0
        """The step from which on predictions of running rows are brought up to date."""
        self._vain = Lull(VAIN_STEPS)
        """Of displacement, when it made room for nobody."""
        self.displaced: set[str] = set()
        """Whom the plan of this step displaces for others."""

    def begin(self) -> None:
        """A step starts."""
        self.displaced.clear()

    def plan(self, free_kv_blocks: int, free_seats: int, kept_blocks: int) -> Plan:
        """The plan of this step under its limits; see ``PolicyRunner.plan``."""
        self._planner.chunk = self._limits.current.prefill_chunk
        if self._is_for_decodes():
            plan = _DECODES
        else:
            plan = self._plan(free_kv_blocks, free_seats, kept_blocks)
        index, notes = self._steps.index, self._planner.notes
        if notes.step != index and self._ledger.waiting:
            short = explain.TOKENS if free_seats > 0 or plan.decode else explain.SEATS
            if self._is_held() and not plan.decode:
                short = explain.KV_LATER
            notes.nobody(index, explain.KV if plan.preempt else short)
        return plan

    def _is_for_decodes(self) -> bool:
        """Prompts have held up running answers for long enough, where steps hold either."""
        now_s, decodes = self._ledger.now_s, self._ledger.batch.decoding
        if self._turns is None or not self._turns.due(now_s, decodes):
            return False
        self._counters["decode_turns"] += 1
        return True

    def _plan(self, free_kv_blocks: int, free_seats: int, kept_blocks: int) -> Plan:
        ledger, engine = self._ledger, self._engine
        ceiling = self._limits.current.token_budget or engine.max_token_budget
        if self._hits is not None and free_seats > 0 and not self._is_held():
            self._hits.look_up(ledger.view(ledger.waiting), self._steps.index)
        waiting, running = ledger.view(ledger.waiting), ledger.view(ledger.running)
        # Each running row takes a block or two at most, and prompts those of the budget.
        most = 2 * len(running) + ceiling // engine.kv_block_tokens
        tight = free_kv_blocks < most
        crowded = ledger.batch.mid_prefill > 0
        pressing = self._wanting_room(waiting, running) if self._displace else 0
        displace = pressing > 0
        if 0 < pressing <= free_seats and not (tight or crowded):
            # All of them find a seat anyway.
            displace = int(waiting.need_kv_blocks.sum()) > free_kv_blocks - most
        # Decodes have to stand before the prompts that a budget is too small for.
        orders = crowded and (self._displace or self._limits.controller is not None)
        watched = displace or orders or (self._displace and tight)
        full = self._planner.is_full(len(waiting))
        may_start = free_seats > 0 and len(waiting) > 0 and (full or not self._is_held())
        if not (watched or full or may_start):
            self._steps.rest(running, waiting, free_kv_blocks, free_seats)
            return _NOTHING
        ledger.batch.settle()
        if not (displace or tight or crowded):
            return self._plan_amply(running, waiting, free_kv_blocks, free_seats, ceiling, full)
        needs = self._demand(running, ceiling)
        budget = ceiling - int(needs.tokens.sum())
        blocks = free_kv_blocks - int(needs.blocks.sum())
        window = free_seats + MAX_VICTIMS_A_STEP if displace else free_seats
        step = self._steps.make(running, waiting, free_seats, budget, max(blocks, 0), window)
        self._steps.deliver(step)
        short = -(blocks + kept_blocks)
        if short > 0 and self._displace:
            self._refresh(running, at_once=True)
            return self._planner.relieve(running, step, needs, short)
        crowds = orders and needs.wanted > ceiling
        gives_way = self._gives_way and crowded and free_seats > 0
        if not len(waiting) or not (displace or full or gives_way or (may_start and budget > 0)):
            return Plan(reorder=crowds)
        self._refresh(running, at_once=displace)
        drawn = self._planner.draw(waiting, step)
        if gives_way and self._give_way(running, drawn.best, ceiling, free_seats, blocks):
            needs = self._demand(running, ceiling)
            blocks = free_kv_blocks - int(needs.blocks.sum())
        if displace:
            plan = self._displace_for(drawn, running, step, needs, free_kv_blocks, ceiling)
        else:
            left = Left(free_seats, blocks, ceiling - int(needs.tokens.sum()))
            plan = self._offer(drawn, running, step, left, free_kv_blocks)
        return plan._replace(reorder=crowds)

    def _plan_amply(
        self,
        running: Requests,
        waiting: Requests,
        free_kv_blocks: int,
        free_seats: int,
        ceiling: int,
        full: bool,
    ) -> Plan:
        """All decode and blocks abound, so that a block for each is near enough."""
        budget = ceiling - self._engine.decode_budget_tokens * len(running)
        blocks = free_kv_blocks - len(running)
        step = self._steps.make(running, waiting, free_seats, max(budget, 0), max(blocks, 0))
        self._steps.deliver(step)
        if budget <= 0 and not full:
            return _NOTHING
        self._refresh(running, at_once=False)
        drawn = self._planner.draw(waiting, step)
        left = Left(free_seats, blocks, budget)
        return self._offer(drawn, running, step, left, free_kv_blocks)

    def _offer(
        self, drawn: Drawn, running: Requests, step: Step, left: Left, free_kv_blocks: int
    ) -> Plan:
        """Offer the rows drawn; if all are held, leave it at that until something changes."""
        peak = self._peak(running, drawn.best, free_kv_blocks)
        plan = self._planner.offer(drawn, step, left, peak)
        if peak is None or not len(drawn.best) or plan.admit or plan.refuse:
            return plan
        self._counters["held_for_kv"] += 1
        # A policy that holds rows back, or a bound, may let others start at any time.
        if drawn.ranked.open is None and self._planner.overdue.certificates is None:
            self._held.begin(self._ledger.changes, self._steps.index)
        return plan

    def _displace_for(
        self,
        drawn: Drawn,
        running: Requests,
        step: Step,
        needs: Demand,
        free_kv_blocks: int,
        ceiling: int,
    ) -> Plan:
        """Offer the rows drawn, and displace for them; if in vain, leave it at that as well."""
        if needs.wanted > ceiling:
            # What a victim gives up goes to running rows first, until all have what they want.
            needs = self._demand(running, needs.wanted)
        blocks = free_kv_blocks - int(needs.blocks.sum())
        left = Left(step.seats, blocks, ceiling - needs.wanted)
        peak = self._peak(running, drawn.best, free_kv_blocks)
        plan = self._planner.displace(drawn, running, step, needs, left, peak)
        if not plan.preempt:
            self._vain.begin(self._ledger.changes, self._steps.index)
        self.displaced.update(plan.preempt)
        return plan

    def _is_held(self) -> bool:
        """Nothing has changed since all were held for what is to come."""
        return self._held.holds(self._ledger.changes, self._steps.index)

    def _peak(self, running: Requests, best: Requests, free_kv_blocks: int) -> Peak | None:
        """What running rows may hold at most; None where KV cannot run out."""
        if self._forecast is None:
            return None
        index = self._steps.index
        return self._forecast.peak(running, best, free_kv_blocks, self._engine, index)

    def _refresh(self, running: Requests, *, at_once: bool) -> None:
        """Bring what is predicted of running rows up to date, at once if victims are sought."""
        if self._forecast is None or not (at_once or self._steps.index >= self._stale):
            return
        self._forecast.refresh(running)
        self._stale = self._steps.index + FRESH_STEPS

    def _give_way(
        self, running: Requests, best: Requests, ceiling: int, seats: int, blocks: int
    ) -> bool:
        """Compute less of the running prompts in this step, for others that would start."""
        prefill = running.prefill_tokens
        prompts = prefill > 0
        if not prompts.any():
            return False
        decodes = self._engine.decode_budget_tokens * int((~prompts).sum())
        # Not for those that cannot start for want of KV.
        fit = np.flatnonzero(np.cumsum(best.need_kv_blocks[:seats]) <= blocks)
        chunk = chunk_giving_way(
            prefill[prompts],
            best.prefill_tokens[fit],
            best.priority[fit] < running.priority[prompts].min(),
            ceiling - decodes,
            self._engine.kv_block_tokens,
        )
        if chunk is None or chunk >= (self._limits.current.prefill_chunk or ceiling):
            return False
        self._planner.chunk = chunk
        return True

    def _wanting_room(self, waiting: Requests, running: Requests) -> int:
        """Waiting rows that others might be displaced for."""
        queue, batch = self._ledger.waiting, self._ledger.running
        if not queue or not batch:
            return 0
        if self._by_class and queue.most_urgent >= batch.least_urgent:
            return 0
        # The policy's order moves with time, but not so fast that each step would change it.
        if self._vain.holds(self._ledger.changes, self._steps.index):
            return 0
        return self._planner.wanting_room(waiting, running, self._ledger.now_s)

    def _demand(self, running: Requests, token_budget: int) -> Demand:
        return demand(
            running,
            token_budget=token_budget,
            block_tokens=self._engine.kv_block_tokens,
            decode_tokens=self._engine.decode_budget_tokens,
            grown=self._engine.decode_tokens,
            chunk=self._planner.chunk,
        )
