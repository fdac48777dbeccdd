"""The runner: one for each engine scheduler, under any policy."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from batchpolicy.config import PolicyConfig
from batchpolicy.errors import ConfigError
from batchpolicy.policy import Step
from batchpolicy.requests import Requests, Status
from batchpolicy.runner.demand import Demand, demand
from batchpolicy.runner.displacement import victim_order
from batchpolicy.runner.facts import EngineFacts, Plan, Probe, RequestFacts, Tick
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.ledger import Ledger
from batchpolicy.runner.planner import SPARE_ROWS, Left, Planner

logger = logging.getLogger(__name__)

_NOTHING = Plan()
MAX_QUIET_STEPS = 64
"""Steps after which events are delivered although nothing is to be planned."""


class PolicyRunner:
    """Owns what must hold under every policy: order, ties, fit, displacement, guard.

    In each step an adapter calls ``begin(tick())``, ``plan``, then ``scheduled`` with
    what the engine made of it, and ``produced`` when results are back; ``arrived``,
    ``ready`` and ``finished`` come whenever they happen.

    Raises
    ------
    ConfigError
        When the policy requires what the engine cannot do.
    """

    def __init__(
        self,
        config: PolicyConfig,
        engine: EngineFacts,
        probe: Probe | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.policy = config.build_policy()
        self.engine = engine
        self.counters: Counter[str] = Counter()
        able = set(engine.capabilities)
        if engine.cost is not None:
            able.add("step_cost")
        missing = sorted(self.policy.tags.requires - able)
        if missing:
            raise ConfigError(
                f"policy {config.label!r} requires {', '.join(missing)}, which this engine "
                f"lacks; it has: {', '.join(sorted(able)) or 'none'}."
            )
        self._displace = config.preempts() == "class"
        self._guard = Guard(self.policy, self.counters, strict=strict)
        self._ledger = Ledger(self.policy, engine)
        self._planner = Planner(self.policy, engine, self._guard, self.counters, probe)
        self._index = 0
        self._quiet_steps = 0

    def arrived(self, request_id: str, facts: RequestFacts) -> None:
        """A request came; O(1), and a known id is ignored."""
        if request_id not in self._ledger.table:
            slot = self._ledger.arrived(request_id, facts)
            self._planner.displaced[np.array([slot])] = 0.0

    def ready(self, request_id: str, flag: bool) -> None:
        """A waiting request can start now, or cannot any more."""
        self._ledger.ready(request_id, flag)

    def finished(self, request_id: str, status: Status) -> None:
        """A request ended, from any state; unknown and ended ids are ignored."""
        self._ledger.finished(request_id, status)

    def tick(self) -> Tick:
        """Read the clock; the leader of several ranks does this for all."""
        return Tick(self.engine.clock())

    def begin(self, tick: Tick) -> None:
        """Start a step at the tick's time."""
        self._index += 1
        self._ledger.begin(tick.now_s)

    def plan(self, free_kv_blocks: int, free_seats: int, *, kept_blocks: int = 0) -> Plan:
        """What the engine should do in this step.

        ``free_kv_blocks`` are those free now, watermark taken off; ``free_seats``
        those that admission may fill; ``kept_blocks`` the watermark: free blocks that
        only running requests may take.
        """
        ledger, engine = self._ledger, self.engine
        waiting, running = ledger.view(ledger.waiting), ledger.view(ledger.running)
        displace = self._displace and self._could_displace()
        # Each running row takes a block or two at most, and prompts those of the budget.
        most = 2 * len(running) + engine.max_token_budget // engine.kv_block_tokens
        tight = self._displace and free_kv_blocks < most
        crowded = self._displace and ledger.mid_prefill > 0
        if not (displace or tight or crowded or (len(waiting) and free_seats > 0)):
            self._rest(running, waiting, free_kv_blocks, free_seats)
            return _NOTHING
        ledger.settle()
        if not (displace or tight or crowded):
            # All decode and blocks abound, so that a block for each is near enough.
            budget = engine.max_token_budget - engine.decode_tokens * len(running)
            blocks = free_kv_blocks - len(running)
            step = self._step(running, waiting, free_seats, max(budget, 0), max(blocks, 0))
            self._deliver(step)
            return self._planner.offer(waiting, step) if budget > 0 else _NOTHING
        needs = self._demand(running, engine.max_token_budget)
        budget = engine.max_token_budget - int(needs.tokens.sum())
        blocks = free_kv_blocks - int(needs.blocks.sum())
        step = self._step(running, waiting, free_seats, budget, max(blocks, 0))
        self._deliver(step)
        short = -(blocks + kept_blocks)
        if short > 0 and self._displace:
            return self._planner.relieve(running, step, needs, short)
        crowded = crowded and needs.wanted > engine.max_token_budget
        if not len(waiting) or not (displace or (free_seats > 0 and budget > 0)):
            return Plan(reorder=crowded)
        if not displace:
            return self._planner.offer(waiting, step)._replace(reorder=crowded)
        if needs.wanted > engine.max_token_budget:
            # What a victim gives up goes to running rows first, until all have what they want.
            needs = self._demand(running, needs.wanted)
            blocks = free_kv_blocks - int(needs.blocks.sum())
        left = Left(free_seats, blocks, engine.max_token_budget - needs.wanted)
        plan = self._planner.displace(waiting, running, step, needs, left)
        return plan._replace(reorder=crowded)

    def keep_order(self, ids: Sequence[str]) -> list[str]:
        """Running ids, best first: the engine gives tokens from the front, drops from the tail.

        Decodes before prefills, then the reverse of the order in which they would be
        displaced. Ids that are not known keep their order, behind the others.
        """
        self._ledger.settle()
        known = [i for i in ids if i in self._ledger.table]
        rows = self._ledger.table.rows(self._ledger.slots_of(known))
        step = self._step(rows, self._ledger.view(self._ledger.waiting), 0, 0, 0)
        tier, keep = self._guard.keep(rows, step)
        best = victim_order(rows.priority, tier, keep, rows.seq)[::-1]
        order: list[int] = best[np.argsort(rows.prefill_tokens[best] > 0, kind="stable")].tolist()
        return [known[row] for row in order] + [i for i in ids if i not in self._ledger.table]

    def scheduled(
        self,
        tokens: Mapping[str, int],
        admitted: Mapping[str, int],
        preempted: Sequence[str],
    ) -> None:
        """What the engine really scheduled: tokens by id, ids it admitted with their cache hit."""
        if preempted:
            self.preempted(preempted)
        if admitted:
            self.counters["admitted"] += self._ledger.admitted(admitted)
        self._ledger.scheduled(tokens)

    def preempted(self, ids: Sequence[str]) -> None:
        """Running requests lost their KV outside of a step; ``scheduled`` tells of others."""
        ledger = self._ledger
        known = ledger.table.slots
        lost = {i: known[i] for i in ids if i in known and known[i] in ledger.running}
        if not lost:
            return
        ledger.settle()
        for slot in lost.values():
            ledger.events.add("preempted", slot)
        # The hook must still see what is lost.
        running, waiting = ledger.view(ledger.running), ledger.view(ledger.waiting)
        self._deliver(self._step(running, waiting, 0, 0, 0))
        for request_id in lost:
            ledger.preempted(request_id)
        self.counters["preempted"] += len(lost)

    def produced(
        self, outputs: Mapping[str, int], rejected: Mapping[str, int], elapsed_s: float
    ) -> None:
        """Results came back ``elapsed_s`` after the tick: tokens out, drafts rejected."""
        self._ledger.produced(outputs, rejected, elapsed_s)

    def produced_steadily(self, results: int, elapsed_s: float) -> bool:
        """The same, for one token each of ``results`` requests; false if it must be spelt out."""
        return self._ledger.produced_steadily(results, elapsed_s)

    def reconcile(self, waiting_ids: Sequence[str], running_ids: Sequence[str]) -> None:
        """Make the tables agree with the engine's queues, which are the truth."""
        ledger = self._ledger
        truth = set(waiting_ids) | set(running_ids)
        for request_id in [i for i in ledger.table.slots if i not in truth]:
            self.counters["reconciled"] += 1
            ledger.finished(request_id, Status.ABORTED)
        slots = ledger.table.slots
        lost = [i for i in waiting_ids if i in slots and slots[i] in ledger.running]
        seated = {i: 0 for i in running_ids if i in slots and slots[i] not in ledger.running}
        self.counters["reconciled"] += len(lost) + len(seated)
        self.preempted(lost)
        ledger.admitted(seated)

    def _could_displace(self) -> bool:
        waiting, running = self._ledger.waiting, self._ledger.running
        return bool(waiting and running and waiting.most_urgent < running.least_urgent)

    def _demand(self, running: Requests, token_budget: int) -> Demand:
        return demand(
            running,
            token_budget=token_budget,
            block_tokens=self.engine.kv_block_tokens,
            decode_tokens=self.engine.decode_tokens,
            chunk=self.engine.max_prefill_chunk,
        )

    def _rest(self, running: Requests, waiting: Requests, blocks: int, seats: int) -> None:
        """Nothing to plan; keep the accounts from lagging for ever."""
        self._quiet_steps += 1
        if self._quiet_steps >= MAX_QUIET_STEPS:
            self._ledger.settle()
            self._deliver(self._step(running, waiting, seats, 0, blocks))

    def _deliver(self, step: Step) -> None:
        self._quiet_steps = 0
        if self._ledger.events:
            events = self._ledger.events
            self._guard.hooks(lambda: events.deliver(step), events.silence)

    def _step(
        self, running: Requests, waiting: Requests, seats: int, tokens: int, blocks: int
    ) -> Step:
        engine, ledger = self.engine, self._ledger
        return Step(
            index=self._index,
            now_s=ledger.now_s,
            lag_steps=engine.lag_steps,
            role=engine.role,
            mixed=engine.mixed,
            max_partial=engine.max_partial or engine.max_running,
            decode_tokens=engine.decode_tokens,
            max_running=engine.max_running,
            max_token_budget=engine.max_token_budget,
            total_kv_blocks=engine.total_kv_blocks,
            kv_block_tokens=engine.kv_block_tokens,
            seats=seats,
            token_budget=tokens,
            free_kv_blocks=blocks,
            running=running,
            waiting=waiting,
            window=max(seats, 0) + SPARE_ROWS,
            step_s=ledger.step_s,
            busy_frac=float("nan"),
            cost=engine.cost,
        )
