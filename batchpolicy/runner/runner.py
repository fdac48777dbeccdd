"""The runner: one for each engine scheduler, under any policy."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from batchpolicy import explain
from batchpolicy.config import Bounds, LimitSettings, Memory, PolicyConfig, Queue
from batchpolicy.errors import ConfigError
from batchpolicy.policy import CodeKind, Limits, Step
from batchpolicy.predictor import TRUTH, LengthDist
from batchpolicy.requests import QUANTILES, BoolArray, IntArray, Requests, Status
from batchpolicy.runner.busy import Busy
from batchpolicy.runner.certificate import Certificate
from batchpolicy.runner.controller import LimitController
from batchpolicy.runner.decode_turns import DecodeTurns
from batchpolicy.runner.demand import Demand, demand
from batchpolicy.runner.displacement import MAX_VICTIMS_A_STEP
from batchpolicy.runner.ends import Ends
from batchpolicy.runner.facts import EngineFacts, Plan, Predictions, Probe, RequestFacts, Tick
from batchpolicy.runner.forecast import MEDIAN, Forecast
from batchpolicy.runner.foresight import Foresight
from batchpolicy.runner.giving_way import chunk_giving_way
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.hits import Hits
from batchpolicy.runner.ledger import Ledger
from batchpolicy.runner.overdue import Overdue
from batchpolicy.runner.peak import Peak
from batchpolicy.runner.planner import SPARE_ROWS, Drawn, Left, Planner
from batchpolicy.runner.retune import retuned

logger = logging.getLogger(__name__)

_NOTHING = Plan()
_DECODES = Plan(decode=True)
HELD_STEPS = 16
"""Steps without a change in which admission is not tried again after all were held for KV."""
VAIN_STEPS = 8
"""Steps without a change in which displacement is not tried again after it was in vain."""
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
        self._foresight = self._foresees(config, able, strict=strict)
        preemption = config.preemption()
        self._displace = preemption.by != "never"
        self._by_class = preemption.by == "class"
        bounds, queue = config.bounds or Bounds(), config.queue or Queue()
        self._guard = Guard(self.policy, self.counters, strict=strict)
        self._ledger = Ledger(self.policy, engine, self._forget)
        self._ends = Ends(engine, queue.ttl_s)
        self._busy = Busy()
        self._planner = Planner(
            engine,
            self._guard,
            self.counters,
            probe,
            bounds.max_bypass_s,
            Overdue(bounds, self._ledger.table, self.counters),
            queue.max_waiting,
            preemption,
        )
        self._hits: Hits | None = None
        if probe is not None and "prefix" in self.policy.tags.requires:
            self._hits = Hits(self._ledger.table, probe)
        self._ceilings = Limits(
            engine.max_running, engine.max_token_budget, engine.max_prefill_chunk
        )
        self._asks_limits = self.policy.overrides("limits")
        limits = config.limits or LimitSettings()
        memory = config.memory or Memory()
        self._high = memory.quantile
        self._forecast: Forecast | None = None
        if memory.look_ahead:
            told = "nothing" if self._foresight is None else self._foresight.tells
            self._forecast = Forecast(self._ledger.table, memory, self.counters, told)
        self._displaced: set[str] = set()
        """Whom the latest plan displaces for others."""
        self._gives_way = engine.chunks and limits.long_prompts_give_way
        self._certificates = self._planner.overdue.certificates
        self._notes = self._planner.notes
        self._ledger.on_end = self._ended
        self._turns = None if engine.mixed else DecodeTurns(limits.decode_gap_s)
        self._base = self._within(_limits_of(limits), self._ceilings)
        self._limits = self._base
        self._controller = (
            None
            if limits.tpot_target_s is None
            else LimitController(engine, limits.tpot_target_s, self.counters)
        )
        self._for_others = 0
        """Requests that the last plan displaces for others, and not for want of blocks."""
        self._planner.chunk = self._limits.prefill_chunk
        self._told = self._ceilings
        """Limits that the engine knows of."""
        self._index = 0
        self._quiet_steps = 0
        self._vain_at = self._vain_until = -1
        """When displacement was last tried in vain, in changes of the ledger, and until when."""
        self._held_at = self._held_until = -1
        """The same for admission, when all were held for want of KV to come."""

    def retune(self, key: str, value: object) -> None:
        """Another value for one number of the policy, from the next step on; its state stays.

        Raises
        ------
        ConfigError
            When it has no such number, or the value is none that it takes.
        """
        policy = retuned(self.policy, key, value)
        self.policy = policy
        self._guard.follow(policy)
        self._ledger.events.follow(policy)

    def relimit(self, limits: Limits) -> None:
        """Other limits from the next step on, up to the engine's; None leaves one as it is."""
        both = zip(limits, self._base, strict=True)
        asked = Limits(*(old if new is None else new for new, old in both))
        self._base = self._limits = self._within(asked, self._ceilings)

    @property
    def limits(self) -> Limits:
        """The limits that hold now."""
        return self._limits

    def arrived(self, request_id: str, facts: RequestFacts) -> None:
        """A request came; O(1), and a known id is ignored."""
        if request_id not in self._ledger.table:
            slot = self._ledger.arrived(request_id, facts)
            self._planner.arrived(slot)
            self._notes.waits(slot, self._index + 1, ready=facts.ready)
            self._ends.arrived(request_id, facts)
            if self._forecast is not None:
                self._forecast.arrived(slot)
            if self._foresight is not None:
                self._foresight.arrived(request_id, facts)

    def ready(self, request_id: str, flag: bool) -> None:
        """A waiting request can start now, or cannot any more."""
        slot = self._ledger.ready(request_id, flag)
        if slot is None:
            return
        self._notes.ready(slot, self._index + 1, flag)
        if self._certificates is not None:
            self._certificates.ready(slot, flag)

    def finished(self, request_id: str, status: Status) -> None:
        """A request ended, from any state; unknown and ended ids are ignored."""
        ledger = self._ledger
        slot = ledger.table.slots.get(request_id)
        whole = slot is not None and status == Status.FINISHED and slot in ledger.running
        ledger.finished(request_id, status)
        if slot is None:
            return
        if whole and self._forecast is not None:
            self._forecast.answered(slot)
        if self._foresight is not None:
            out = int(ledger.table.columns["output_tokens"][slot]) if whole else None
            self._foresight.ended(request_id, out)

    def tick(self) -> Tick:
        """Read the clock and predict; the leader of several ranks does this for all."""
        foresight = self._foresight
        return Tick(self.engine.clock(), None if foresight is None else foresight.take())

    def begin(self, tick: Tick) -> None:
        """Start a step at the tick's time."""
        self._index += 1
        self._displaced.clear()
        self._ledger.begin(tick.now_s)
        self._ends.begin(tick.now_s)
        self._busy.begin(tick.now_s)
        if self._certificates is not None:
            self._certificates.begin(tick.now_s)
        if tick.predictions is not None:
            self._predicted(tick.predictions)

    def _predicted(self, told: Predictions) -> None:
        """Predictions reach the tables; requests that have ended meanwhile do without."""
        table = self._ledger.table
        slots = [table.slots.get(i, -1) for i in told.ids]
        for slot, quantiles in zip(slots, told.quantiles, strict=True):
            if slot >= 0:
                table.columns[QUANTILES][slot] = quantiles
                table.columns["predicted_output_tokens"][slot] = quantiles[MEDIAN]
                table.differ({"predicted_output_tokens": float(quantiles[MEDIAN])})
        known = [slot for slot in slots if slot >= 0]
        high = LengthDist(table.columns[QUANTILES][known]).quantile(self._high)
        table.columns["predicted_output_high"][known] = high

    def plan(self, free_kv_blocks: int, free_seats: int, *, kept_blocks: int = 0) -> Plan:
        """What the engine should do in this step.

        ``free_kv_blocks`` are those free now, watermark taken off; ``free_seats``
        those that admission may fill; ``kept_blocks`` the watermark: free blocks that
        only running requests may take. Requests that the plan refuses have ended for
        the runner.
        """
        ends = [
            end
            for end in self._ends.take(self._ledger.now_s)
            if self._ledger.ended_waiting(end.request_id, end.status)
        ]
        if self._asks_limits or self._controller is not None:
            self._ask_limits()
        if self._limits.max_running is not None and self._limits != self._ceilings:
            seats = self._limits.max_running - len(self._ledger.running)
            free_seats = min(free_seats, seats)
        self._planner.chunk = self._limits.prefill_chunk
        if self._is_for_decodes():
            plan = _DECODES
        else:
            plan = self._plan(free_kv_blocks, free_seats, kept_blocks)
        if self._notes.step != self._index and self._ledger.waiting:
            short = explain.TOKENS if free_seats > 0 or plan.decode else explain.SEATS
            if self._held() and not plan.decode:
                short = explain.KV_LATER
            self._notes.nobody(self._index, explain.KV if plan.preempt else short)
        for request_id, _ in plan.refuse:
            self._ledger.ended_waiting(request_id, Status.REFUSED)
        self._for_others = len(plan.preempt) if plan.admit else 0
        if ends or plan.refuse:
            expired = sum(end.status == Status.EXPIRED for end in ends)
            self.counters["expired"] += expired
            self.counters["refused"] += len(ends) - expired + len(plan.refuse)
            told = [(end.request_id, end.reason) for end in ends]
            plan = plan._replace(refuse=told + plan.refuse)
        limits, chunk = self._limits, self._planner.chunk
        if chunk != limits.prefill_chunk:
            limits = limits._replace(prefill_chunk=chunk)
        if limits != self._told:
            lifted = limits.prefill_chunk is None and self._told.prefill_chunk is not None
            self._told = limits
            # A cap that is lifted is told as one of a whole step.
            whole = limits._replace(prefill_chunk=self.engine.max_token_budget)
            plan = plan._replace(limits=whole if lifted else limits)
        if not (plan.admit or self._ledger.running):
            wake_s = self._ends.next_s(self._ledger.never_started)
            if wake_s < plan.wake_s:
                plan = plan._replace(wake_s=wake_s)
        return plan

    def _is_for_decodes(self) -> bool:
        """Prompts have held up running answers for long enough, where steps hold either."""
        now_s, decodes = self._ledger.now_s, self._ledger.batch.decoding
        if self._turns is None or not self._turns.due(now_s, decodes):
            return False
        self.counters["decode_turns"] += 1
        return True

    def _plan(self, free_kv_blocks: int, free_seats: int, kept_blocks: int) -> Plan:
        ledger, engine = self._ledger, self.engine
        ceiling = self._limits.token_budget or engine.max_token_budget
        if self._hits is not None and free_seats > 0 and not self._held():
            self._hits.look_up(ledger.view(ledger.waiting), self._index)
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
        orders = crowded and (self._displace or self._controller is not None)
        watched = displace or orders or (self._displace and tight)
        full = self._planner.is_full(len(waiting))
        held = self._held() and not full
        if held and not watched:
            self._rest(running, waiting, free_kv_blocks, free_seats)
            return _NOTHING
        if not (watched or full or (len(waiting) and free_seats > 0)):
            self._rest(running, waiting, free_kv_blocks, free_seats)
            return _NOTHING
        ledger.batch.settle()
        if not (displace or tight or crowded):
            # All decode and blocks abound, so that a block for each is near enough.
            budget = ceiling - engine.decode_budget_tokens * len(running)
            blocks = free_kv_blocks - len(running)
            step = self._step(running, waiting, free_seats, max(budget, 0), max(blocks, 0))
            self._deliver(step)
            if budget <= 0 and not full:
                return _NOTHING
            drawn = self._planner.draw(waiting, step)
            left = Left(free_seats, blocks, budget)
            return self._offer(drawn, running, step, left, free_kv_blocks)
        needs = self._demand(running, ceiling)
        budget = ceiling - int(needs.tokens.sum())
        blocks = free_kv_blocks - int(needs.blocks.sum())
        window = free_seats + MAX_VICTIMS_A_STEP if displace else free_seats
        step = self._step(running, waiting, free_seats, budget, max(blocks, 0), window)
        self._deliver(step)
        short = -(blocks + kept_blocks)
        if short > 0 and self._displace:
            return self._planner.relieve(running, step, needs, short)
        crowds = orders and needs.wanted > ceiling
        gives_way = self._gives_way and crowded and free_seats > 0
        if not len(waiting) or not (
            displace or full or gives_way or (free_seats > 0 and budget > 0 and not held)
        ):
            return Plan(reorder=crowds)
        drawn = self._planner.draw(waiting, step)
        if gives_way and self._give_way(running, drawn.best, ceiling, free_seats, blocks):
            needs = self._demand(running, ceiling)
            blocks = free_kv_blocks - int(needs.blocks.sum())
        if not displace:
            left = Left(free_seats, blocks, ceiling - int(needs.tokens.sum()))
            plan = self._offer(drawn, running, step, left, free_kv_blocks)
            return plan._replace(reorder=crowds)
        if needs.wanted > ceiling:
            # What a victim gives up goes to running rows first, until all have what they want.
            needs = self._demand(running, needs.wanted)
            blocks = free_kv_blocks - int(needs.blocks.sum())
        left = Left(free_seats, blocks, ceiling - needs.wanted)
        peak = self._peak(running, drawn.best, free_kv_blocks)
        plan = self._planner.displace(drawn, running, step, needs, left, peak)
        if not plan.preempt:
            self._vain_at, self._vain_until = ledger.changes, self._index + VAIN_STEPS
        self._displaced.update(plan.preempt)
        return plan._replace(reorder=crowds)

    def _offer(
        self, drawn: Drawn, running: Requests, step: Step, left: Left, free_kv_blocks: int
    ) -> Plan:
        """Offer the rows drawn; if all are held, leave it at that until something changes."""
        peak = self._peak(running, drawn.best, free_kv_blocks)
        plan = self._planner.offer(drawn, step, left, peak)
        if peak is not None and len(drawn.best) and not plan.admit and not plan.refuse:
            self.counters["held_for_kv"] += 1
        else:
            return plan
        # A policy that holds rows back, or a bound, may let others start at any time.
        if drawn.ranked.open is None and self._certificates is None:
            self._held_at, self._held_until = self._ledger.changes, self._index + HELD_STEPS
        return plan

    def _held(self) -> bool:
        """Nothing has changed since all were held for what is to come."""
        return self._held_at == self._ledger.changes and self._index < self._held_until

    def _peak(self, running: Requests, best: Requests, free_kv_blocks: int) -> Peak | None:
        """What running rows may hold at most; None where KV cannot run out."""
        if self._forecast is None:
            return None
        self._forecast.refresh(running)
        return self._forecast.peak(running, best, free_kv_blocks, self.engine, self._index)

    def _foresees(self, config: PolicyConfig, able: set[str], *, strict: bool) -> Foresight | None:
        if config.predictor is None:
            return None
        predictor = config.predictor.build()
        if TRUTH in predictor.requires - able:
            raise ConfigError(
                f"predictor {config.predictor.name!r} knows the true lengths of answers, which "
                "only replays have; a server needs one that predicts, or none."
            )
        missing = sorted(predictor.requires - able)
        if missing:
            raise ConfigError(
                f"predictor {config.predictor.name!r} requires {', '.join(missing)}, which this "
                f"engine lacks; it has: {', '.join(sorted(able)) or 'none'}."
            )
        return Foresight(predictor, self.counters, strict=strict)

    def _give_way(
        self, running: Requests, best: Requests, ceiling: int, seats: int, blocks: int
    ) -> bool:
        """Compute less of the running prompts in this step, for others that would start."""
        prefill = running.prefill_tokens
        prompts = prefill > 0
        if not prompts.any():
            return False
        decodes = self.engine.decode_budget_tokens * int((~prompts).sum())
        # Not for those that cannot start for want of KV.
        fit = np.flatnonzero(np.cumsum(best.need_kv_blocks[:seats]) <= blocks)
        chunk = chunk_giving_way(
            prefill[prompts],
            best.prefill_tokens[fit],
            best.priority[fit] < running.priority[prompts].min(),
            ceiling - decodes,
            self.engine.kv_block_tokens,
        )
        if chunk is None or chunk >= (self._limits.prefill_chunk or ceiling):
            return False
        self._planner.chunk = chunk
        return True

    def keep_order(self, ids: Sequence[str]) -> list[str]:
        """Running ids, best first: the engine gives tokens from the front, drops from the tail.

        Decodes before prefills, then the reverse of the order in which they would be
        displaced. Ids that are not known keep their order, behind the others.
        """
        self._ledger.batch.settle()
        known = [i for i in ids if i in self._ledger.table]
        rows = self._ledger.table.rows(self._ledger.slots_of(known))
        step = self._step(rows, self._ledger.view(self._ledger.waiting), 0, 0, 0)
        order: list[int] = self._planner.keep_order(rows, step).tolist()
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
            if self._controller is not None and len(preempted) > self._for_others:
                self._controller.short_of_blocks(len(self._ledger.running))
        if self._turns is not None and tokens:
            first = next(iter(tokens))
            if first not in admitted and not self._ledger.batch.is_midway(first):
                self._turns.taken(self._ledger.now_s)
        if admitted:
            self.counters["admitted"] += self._seat(admitted, tokens)
        self._ledger.batch.scheduled(tokens)
        if self._certificates is not None:
            self._certificates.runs(len(self._ledger.running))

    def scheduled_steadily(self, decodes: int) -> bool:
        """The engine scheduled one token of each row past its prompt and nothing else.

        False if there are not so many such rows, and ``scheduled`` has to be told.
        """
        if not self._ledger.batch.scheduled_steadily(decodes):
            return False
        if self._turns is not None:
            self._turns.taken(self._ledger.now_s)
        if self._certificates is not None:
            self._certificates.runs(len(self._ledger.running))
        return True

    def preempted(self, ids: Sequence[str]) -> None:
        """Running requests lost their KV outside of a step; ``scheduled`` tells of others."""
        ledger = self._ledger
        known = ledger.table.slots
        lost = {i: known[i] for i in ids if i in known and known[i] in ledger.running}
        if not lost:
            return
        ledger.batch.settle()
        for slot in lost.values():
            ledger.events.add("preempted", slot)
        # The hook must still see what is lost.
        running, waiting = ledger.view(ledger.running), ledger.view(ledger.waiting)
        self._deliver(self._step(running, waiting, 0, 0, 0))
        for request_id, slot in lost.items():
            ledger.preempted(request_id)
            self._planner.overdue.preempted(slot, ledger.now_s)
            self._notes.waits(slot, self._index + 1)
        self.counters["preempted"] += len(lost)
        if self._forecast is not None:
            for request_id, slot in lost.items():
                if request_id not in self._displaced:
                    self._forecast.evicted(slot)
            rows = ledger.table.rows(ledger.slots_of(lost))
            self._forecast.refresh(rows)

    def produced(
        self, outputs: Mapping[str, int], rejected: Mapping[str, int], elapsed_s: float
    ) -> None:
        """Results came back ``elapsed_s`` after the tick: tokens out, drafts rejected."""
        if self._ledger.batch.computes:
            self._busy.ran(self._ledger.now_s, elapsed_s)
        self._ledger.produced(outputs, rejected, elapsed_s)

    def produced_steadily(self, results: int, elapsed_s: float) -> bool:
        """The same, for one token each of ``results`` requests; false if it must be spelt out."""
        batch, now_s = self._ledger.batch, self._ledger.now_s
        computes = batch.computes
        taken = batch.produced_steadily(results, elapsed_s, now_s)
        if taken and computes:
            self._busy.ran(now_s, elapsed_s)
        return taken

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
        self._seat(seated, {})

    def certificate(self, request_id: str) -> Certificate | None:
        """How a request waited and what the bounds promised it.

        Of all that live and the last thousand that ended; None of others, and of all
        where neither ``max_wait_s`` nor ``max_overtakes`` is set.
        """
        if self._certificates is None:
            return None
        slot = self._ledger.table.slots.get(request_id)
        if slot is None:
            return self._certificates.of_ended(request_id)
        return self._certificates.of(request_id, slot)

    def explain(self, request_id: str) -> list[tuple[int, str]]:
        """Why a request did not start, in its last wait: steps, and the cause from each on.

        Of the last 64 plans that looked at the queue, and for requests that live and the
        last few hundred that ended; empty where nothing is known. Causes: ``seats``,
        ``tokens``, ``kv`` (does not fit now), ``kv later`` (is not expected to fit to its
        end), ``held by policy``, ``adapter``, ``bound: ID is overdue``, ``rank: N before
        it``, ``not ready``, ``not taken by the engine``.
        """
        slot = self._ledger.table.slots.get(request_id)
        if slot is None:
            return self._notes.of_ended(request_id)
        return self._notes.of(slot, int(self._ledger.table.columns["seq"][slot]))

    def _ended(self, request_id: str, slot: int) -> None:
        seq = int(self._ledger.table.columns["seq"][slot])
        self._notes.ended(request_id, slot, seq, self._index + 1)
        if self._certificates is not None:
            self._certificates.ended(request_id, slot)

    def _seat(self, found: Mapping[str, int], tokens: Mapping[str, int]) -> int:
        """How many of these take a seat, each with so many tokens found in the KV cache."""
        slots: list[int] = self._ledger.slots_of(found).tolist()
        seated = [slot for slot in slots if slot not in self._ledger.running]
        self._planner.admitted(seated, self._ledger.now_s)
        computed = sum(tokens.get(i, 0) for i in found)
        self._notes.admitted(seated, self._index, computed)
        return self._ledger.admitted(found)

    def _forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        """Tenants or sessions without live requests are forgotten, as far as the policy can."""
        gone = self._guard.forget(codes, kind)
        if kind == "tenant":
            self._planner.overdue.forget(codes[gone])
        return gone

    def _wanting_room(self, waiting: Requests, running: Requests) -> int:
        """Waiting rows that others might be displaced for."""
        queue, batch = self._ledger.waiting, self._ledger.running
        if not queue or not batch:
            return 0
        if self._by_class and queue.most_urgent >= batch.least_urgent:
            return 0
        # The policy's order moves with time, but not so fast that each step would change it.
        if self._vain_at == self._ledger.changes and self._index < self._vain_until:
            return 0
        return self._planner.wanting_room(waiting, running, self._ledger.now_s)

    def _demand(self, running: Requests, token_budget: int) -> Demand:
        return demand(
            running,
            token_budget=token_budget,
            block_tokens=self.engine.kv_block_tokens,
            decode_tokens=self.engine.decode_budget_tokens,
            grown=self.engine.decode_tokens,
            chunk=self._planner.chunk,
        )

    def _ask_limits(self) -> None:
        """The tightest of what the file, the policy and the controller say."""
        ledger, engine = self._ledger, self.engine
        limits = self._base
        if self._asks_limits:
            ledger.batch.settle()
            running, waiting = ledger.view(ledger.running), ledger.view(ledger.waiting)
            step = self._step(running, waiting, engine.max_running, 0, 0)
            limits = self._within(self._guard.limits(step), limits)
        if self._controller is not None:
            limits = self._controlled(self._controller, limits)
        self._limits = limits

    def _controlled(self, controller: LimitController, most: Limits) -> Limits:
        ledger = self._ledger
        running = ledger.view(ledger.running)
        try:
            asked = controller.limits(running, ledger.batch, ledger.now_s, ledger.changes)
        except Exception:
            # The engine serves on, under the limits of the file.
            self._controller = None
            self.counters["limits_faults"] += 1
            logger.exception("the controller of limits failed; they stay as the file has them")
            return most
        return self._within(asked, most, rows=len(running))

    def _within(self, asked: Limits, most: Limits, *, rows: int | None = None) -> Limits:
        """Every limit set, at most ``most``; room for all decodes, and a chunk of a block.

        ``rows`` is how many may decode in the next step; None for as many as there are seats.
        """
        seats, tokens, chunk = (
            ceiling if value is None else value if ceiling is None else min(value, ceiling)
            for value, ceiling in zip(asked, most, strict=True)
        )
        engine = self.engine
        block = engine.kv_block_tokens
        least = max(engine.max_running * engine.decode_budget_tokens, block)
        if rows is not None:
            least = min(least, rows * engine.decode_budget_tokens + block)
        # A budget below the decodes would starve the tail of the running requests; one below a
        # prompt that has to go whole would hold it back for ever.
        least = least if engine.chunks else engine.max_token_budget
        tokens = max(tokens or 0, min(least, engine.max_token_budget))
        return Limits(seats, tokens, None if chunk is None else max(chunk, block))

    def _rest(self, running: Requests, waiting: Requests, blocks: int, seats: int) -> None:
        """Nothing to plan; keep the accounts from lagging for ever."""
        self._quiet_steps += 1
        if self._quiet_steps >= MAX_QUIET_STEPS:
            self._ledger.batch.settle()
            self._deliver(self._step(running, waiting, seats, 0, blocks))

    def _deliver(self, step: Step) -> None:
        self._quiet_steps = 0
        if self._ledger.events:
            events = self._ledger.events
            self._guard.hooks(lambda: events.deliver(step), events.silence)

    def _step(
        self,
        running: Requests,
        waiting: Requests,
        seats: int,
        tokens: int,
        blocks: int,
        admissions: int | None = None,
    ) -> Step:
        """``admissions`` may come at most, by default as many as seats are free."""
        most = seats if admissions is None else admissions
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
            window=max(most, 0) + SPARE_ROWS,
            step_s=ledger.batch.step_s,
            busy_frac=self._busy.frac(ledger.now_s),
            cost=engine.cost,
        )


def _limits_of(settings: LimitSettings) -> Limits:
    return Limits(settings.max_num_seqs, settings.max_num_batched_tokens, settings.prefill_chunk)
