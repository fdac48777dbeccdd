"""The runner: one for each engine scheduler, under any policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from batchpolicy.config import Bounds, LimitSettings, Memory, PolicyConfig, Queue
from batchpolicy.policy import CodeKind, Limits
from batchpolicy.requests import BoolArray, IntArray, Status
from batchpolicy.runner.busy import Busy
from batchpolicy.runner.certificate import Certificate
from batchpolicy.runner.decode_turns import DecodeTurns
from batchpolicy.runner.ends import End, Ends
from batchpolicy.runner.facts import EngineFacts, Plan, Probe, RequestFacts, Tick
from batchpolicy.runner.forecast import Forecast
from batchpolicy.runner.foresight import Foresight
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.hits import Hits
from batchpolicy.runner.ledger import Ledger
from batchpolicy.runner.limits import StepLimits
from batchpolicy.runner.overdue import Overdue
from batchpolicy.runner.planner import Planner
from batchpolicy.runner.predicted import write_predictions
from batchpolicy.runner.requirements import policy_for, predictor_for
from batchpolicy.runner.retune import retuned
from batchpolicy.runner.step_maker import StepMaker
from batchpolicy.runner.triage import Triage


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
        self.policy = policy_for(config, engine)
        self.engine = engine
        self.counters: Counter[str] = Counter()
        self.policy.count_in(self.counters)
        bounds, queue = config.bounds or Bounds(), config.queue or Queue()
        limits, memory = config.limits or LimitSettings(), config.memory or Memory()
        predictor = predictor_for(config, engine)
        self._foresight = (
            None
            if predictor is None
            else Foresight(predictor, engine, memory.quantile, self.counters, strict=strict)
        )
        self._guard = Guard(self.policy, self.counters, strict=strict)
        self._ledger = Ledger(self.policy, engine, self._forget)
        self._ledger.on_end = self._ended
        self._ends = Ends(engine, queue.ttl_s)
        self._busy = Busy()
        self._steps = StepMaker(engine, self._ledger, self._guard, self._busy)
        self._planner = Planner(
            engine,
            self._guard,
            self.counters,
            probe,
            bounds.max_bypass_s,
            Overdue(bounds, self._ledger.table, self.counters),
            queue.max_waiting,
            config.preemption(),
        )
        self._certificates = self._planner.overdue.certificates
        self._notes = self._planner.notes
        self._forecast: Forecast | None = None
        if memory.look_ahead:
            told = "nothing" if self._foresight is None else self._foresight.tells
            self._forecast = Forecast(self._ledger.table, memory, self.counters, told)
        self._turns = None if engine.mixed else DecodeTurns(limits.decode_gap_s)
        self._limits = StepLimits(
            engine, limits, self.policy, self._guard, self._ledger, self._steps, self.counters
        )
        hits: Hits | None = None
        if probe is not None and "prefix" in self.policy.tags.requires:
            hits = Hits(self._ledger.table, probe)
        self._triage = Triage(
            engine,
            self._ledger,
            self._planner,
            self._steps,
            self._limits,
            self._forecast,
            hits,
            self._turns,
            self.counters,
            long_prompts_give_way=limits.long_prompts_give_way,
        )

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
        self._limits.relimit(limits)

    @property
    def limits(self) -> Limits:
        """The limits that hold now."""
        return self._limits.current

    def arrived(self, request_id: str, facts: RequestFacts) -> None:
        """A request came; O(1), and a known id is ignored."""
        if request_id not in self._ledger.table:
            slot = self._ledger.arrived(request_id, facts)
            self._planner.arrived(slot)
            self._notes.waits(slot, self._steps.index + 1, ready=facts.ready)
            self._ends.arrived(request_id, facts)
            if self._forecast is not None:
                self._forecast.arrived(slot)
            if self._foresight is not None:
                columns = self._ledger.table.columns
                turn = int(columns["turn"][slot]) if facts.session else -1
                self._foresight.arrived(request_id, facts, int(columns["seq"][slot]), turn)

    def ready(self, request_id: str, flag: bool) -> None:
        """A waiting request can start now, or cannot any more."""
        slot = self._ledger.ready(request_id, flag)
        if slot is None:
            return
        self._notes.ready(slot, self._steps.index + 1, flag)
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

    def tick(self) -> Tick:
        """Read the clock, take predictions; the leader of several ranks does this for all."""
        now_s, foresight = self.engine.clock(), self._foresight
        return Tick(now_s, None if foresight is None else foresight.take(now_s))

    def close(self) -> None:
        """The engine shuts down: nothing is predicted any more."""
        if self._foresight is not None:
            self._foresight.close()

    def begin(self, tick: Tick) -> None:
        """Start a step at the tick's time."""
        self._steps.begin(tick.now_s)
        self._triage.begin()
        self._ledger.begin(tick.now_s)
        self._ends.begin(tick.now_s)
        if self._certificates is not None:
            self._certificates.begin(tick.now_s)
        if tick.predictions is not None:
            write_predictions(self._ledger.table, tick.predictions)
            # Who could not start may do so now, and others first.
            self._ledger.changes += 1

    def plan(self, free_kv_blocks: int, free_seats: int, *, kept_blocks: int = 0) -> Plan:
        """What the engine should do in this step.

        ``free_kv_blocks`` are those free now, watermark taken off; ``free_seats``
        those that admission may fill; ``kept_blocks`` the watermark: free blocks that
        only running requests may take. Requests that the plan refuses have ended for
        the runner.
        """
        ends = self._ends_due()
        self._limits.ask()
        seats = self._limits.seats(free_seats)
        plan = self._triage.plan(free_kv_blocks, seats, kept_blocks)
        for request_id, _ in plan.refuse:
            self._ledger.ended_waiting(request_id, Status.REFUSED)
        self._limits.planned(plan)
        if ends or plan.refuse:
            plan = self._with_ends(plan, ends)
        news = self._limits.news(self._planner.chunk)
        if news is not None:
            plan = plan._replace(limits=news)
        if not (plan.admit or self._ledger.running):
            wake_s = self._ends.next_s(self._ledger.never_started)
            if wake_s < plan.wake_s:
                plan = plan._replace(wake_s=wake_s)
        return plan

    def _ends_due(self) -> list[End]:
        """Requests that must end now, and have ended for the ledger."""
        return [
            end
            for end in self._ends.take(self._ledger.now_s)
            if self._ledger.ended_waiting(end.request_id, end.status)
        ]

    def _with_ends(self, plan: Plan, ends: list[End]) -> Plan:
        """The plan with those to end beside those that it refuses, all counted."""
        expired = sum(end.status == Status.EXPIRED for end in ends)
        self.counters["expired"] += expired
        self.counters["refused"] += len(ends) - expired + len(plan.refuse)
        told = [(end.request_id, end.reason) for end in ends]
        return plan._replace(refuse=told + plan.refuse)

    def keep_order(self, ids: Sequence[str]) -> list[str]:
        """Running ids, best first: the engine gives tokens from the front, drops from the tail.

        Decodes before prefills, then the reverse of the order in which they would be
        displaced. Ids that are not known keep their order, behind the others.
        """
        self._ledger.batch.settle()
        known = [i for i in ids if i in self._ledger.table]
        rows = self._ledger.table.rows(self._ledger.slots_of(known))
        step = self._steps.make(rows, self._ledger.view(self._ledger.waiting), 0, 0, 0)
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
            self._limits.preempted(len(preempted))
        if self._turns is not None and tokens:
            first = next(iter(tokens))
            if first not in admitted and not self._ledger.batch.is_midway(first):
                self._turns.taken(self._ledger.now_s)
        if admitted:
            self.counters["admitted"] += self._seat(admitted, tokens)
        self._ledger.batch.scheduled(tokens)
        if self._foresight is not None:
            self._foresight.begin()
        if self._certificates is not None:
            self._certificates.runs(len(self._ledger.running))

    def scheduled_steadily(self, decodes: int) -> bool:
        """The engine scheduled one token of each row past its prompt and nothing else.

        False if there are not so many such rows, and ``scheduled`` has to be told.
        """
        if not self._ledger.batch.scheduled_steadily(decodes):
            return False
        if self._foresight is not None:
            self._foresight.begin()
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
        self._steps.deliver(self._steps.make(running, waiting, 0, 0, 0))
        for request_id, slot in lost.items():
            ledger.preempted(request_id)
            self._planner.overdue.preempted(slot, ledger.now_s)
            self._notes.waits(slot, self._steps.index + 1)
        self.counters["preempted"] += len(lost)
        if self._forecast is not None:
            for request_id, slot in lost.items():
                if request_id not in self._triage.displaced:
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
        self._notes.ended(request_id, slot, seq, self._steps.index + 1)
        if self._certificates is not None:
            self._certificates.ended(request_id, slot)
        if self._foresight is not None:
            columns = self._ledger.table.columns
            ended = int(columns["status"][slot])
            whole = ended == Status.FINISHED and slot in self._ledger.running
            out = int(columns["output_tokens"][slot]) if whole else None
            self._foresight.ended(request_id, out)

    def _seat(self, found: Mapping[str, int], tokens: Mapping[str, int]) -> int:
        """How many of these take a seat, each with so many tokens found in the KV cache."""
        slots: list[int] = self._ledger.slots_of(found).tolist()
        seated = [slot for slot in slots if slot not in self._ledger.running]
        self._planner.admitted(seated, self._ledger.now_s)
        computed = sum(tokens.get(i, 0) for i in found)
        self._notes.admitted(seated, self._steps.index, computed)
        return self._ledger.admitted(found)

    def _forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        """Tenants or sessions without live requests are forgotten, as far as the policy can."""
        gone = self._guard.forget(codes, kind)
        if kind == "tenant":
            self._planner.overdue.forget(codes[gone])
        return gone
