"""Between one SGLang scheduler and the policy runner."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from batchpolicy.config import PolicyConfig
from batchpolicy.requests import Status
from batchpolicy.runner import EngineFacts, Plan, PolicyRunner, RequestFacts, Tick
from batchpolicy_sglang.metadata import Metadata
from batchpolicy_sglang.metrics import PUBLISH_STEPS, publish
from batchpolicy_sglang.seams import batches, ends, limits
from batchpolicy_sglang.seams.kv_probe import START_BLOCKS, KvProbe

logger = logging.getLogger(__name__)

RECONCILE_STEPS = 1000
_HEALTH = "HEALTH_CHECK"


class Driver:
    """Reports what the engine does, and carries out the plan; decides nothing.

    The runner guards against its policy; this class guards the engine against the
    runner: after a fault here requests start in order of arrival.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"prefix", "preempt"})
    """What a policy may require."""

    def __init__(
        self,
        scheduler: Any,
        config: PolicyConfig,
        clock: Callable[[], float],
        *,
        arrival_s_of: Callable[[str], float] | None = None,
        several: bool = False,
    ) -> None:
        """``arrival_s_of`` knows arrivals under a virtual clock; ``several`` ranks must agree."""
        self.several = several
        self._scheduler = scheduler
        self._arrival_s_of = arrival_s_of
        self._reqs: dict[str, Any] = {}
        """All requests that the runner knows."""
        self._probe = KvProbe(scheduler, self._reqs.__getitem__)
        engine = self._engine(scheduler, clock, live=arrival_s_of is None)
        self.runner = PolicyRunner(config, engine, self._probe)
        self._metadata = Metadata(
            config.requests,
            self.runner.counters,
            low_first=bool(scheduler.schedule_low_priority_values_first),
            base_takes_place=limits.max_loras(scheduler) is not None,
        )
        self.reserves = config.memory is None or config.memory.look_ahead
        self.chunk: int | None = None
        self._chunk: int | None = None
        """The same as the plan has it, in tokens that need not fill pages."""
        self._ticked: Tick | None = None
        self._tick_s = 0.0
        self._step_s = 0.0
        """Between the last two ticks: what all ranks can know of a step's time."""
        self._clock = clock
        self._free_seats = limits.seat_counter(scheduler)
        self._offer: dict[str, None] | None = {}
        """Requests that may start in this pass, in order; None for all of them."""
        self._waiting: dict[str, Any] = {}
        """What waits, in SGLang's order."""
        self._waiting_tokens = 0
        self._offered: list[Any] | None = None
        """All that SGLang's queue holds for the length of a pass."""
        self._one_token_each = scheduler.spec_algorithm.is_none()
        self._lags = several or bool(scheduler.enable_overlap)
        """A step is scheduled before it is known who ended in the one before."""
        self._first: dict[str, None] = {}
        """Health checks, and requests that SGLang has given up: a token each, at once."""
        self._seated: set[str] = set()
        self._preempted: list[str] = []
        self._steps = 0
        self._failed = False
        self.wake_s = math.inf
        """When to plan anew though nothing has happened; only a virtual clock need know."""

    def _engine(self, scheduler: Any, clock: Callable[[], float], *, live: bool) -> EngineFacts:
        return EngineFacts(
            max_running=limits.max_running(scheduler),
            max_token_budget=limits.max_token_budget(scheduler),
            total_kv_blocks=limits.total_blocks(scheduler),
            kv_block_tokens=int(scheduler.page_size),
            clock=clock,
            chunks=scheduler.chunked_prefill_size is not None,
            mixed=bool(scheduler.is_mixed_chunk),
            max_partial=1,
            max_loras=limits.max_loras(scheduler),
            start_blocks=START_BLOCKS,
            live=live,
            leads=not self.several or limits.is_leader(),
            lag_steps=int(bool(scheduler.enable_overlap)),
            capabilities=self.capabilities if live else self.capabilities | {"truth"},
        )

    # --- what the adder asks ------------------------------------------------------------

    def offers(self, rid: str) -> bool:
        """Whether a request may start in this pass."""
        return self._offer is None or rid in self._offer

    # --- calls of the engine ------------------------------------------------------------

    def ticked(self, tick: Tick) -> None:
        """The leader's tick came with the requests of this turn."""
        before = self._ticked
        self._ticked = tick if before is None else tick.after(before)

    def before_step(self, running_batch: Any) -> bool:
        """Plan the step and displace; tells whether a prefill pass has anything to do."""
        scheduler = self._scheduler
        if self._failed:
            return True
        try:
            plan = self._plan(running_batch)
            self.wake_s = plan.wake_s
            if plan.limits is not None:
                limits.set_limits(scheduler, plan.limits)
                self._chunk = plan.limits.prefill_chunk
            for rid, reason in plan.refuse:
                self._refuse(rid, reason)
            if plan.preempt:
                ends.preempt(scheduler, running_batch, plan.preempt)
            if plan.decode and not batches.is_short(scheduler, running_batch):
                self._offer = {}
                return False
            self._offer = {**self._first, **dict.fromkeys(plan.admit)}
            self.chunk = self._chunk and self._paged(self._chunk, plan.admit)
        except Exception:
            self._fail("planning")
            return True
        if self._offer:
            # It stays set when a request did not fit, until somebody leaves.
            running_batch.batch_is_full = False
        return bool(self._offer) or batches.must_prefill(scheduler)

    def order(self, queue: list[Any]) -> None:
        """Let the queue hold those on offer and nobody else until the pass is over.

        SGLang goes through the whole of it several times, which takes longer the longer it is.
        """
        if self._offer is None:
            return
        try:
            if len(queue) != len(self._waiting):
                self._waiting = {req.rid: req for req in queue}
                self._waiting_tokens = sum(map(batches.tokens_of, queue))
            offered = [self._waiting[rid] for rid in self._offer if rid in self._waiting]
            self._offered = offered
            queue[:] = offered
        except Exception:
            self._fail("ordering")

    def _restore(self, batch: Any) -> None:
        """The pass is over: all that waits is in the queue again."""
        offered, self._offered = self._offered, None
        if offered is None:
            return
        scheduler, waiting = self._scheduler, self._waiting
        left = {id(req) for req in scheduler.waiting_queue}
        for req in offered:
            if id(req) not in left:
                self._leaves(req.rid)
        unseen = self._waiting_tokens - sum(map(batches.tokens_of, scheduler.waiting_queue))
        batches.correct_pending(batch, unseen)
        scheduler.waiting_queue = list(waiting.values())

    def keep_order(self, reqs: Sequence[Any], native: list[int]) -> list[int]:
        """Places of running requests, first the one to keep longest; ``native`` after a fault."""
        if self._failed:
            return native
        try:
            place = {req.rid: i for i, req in enumerate(reqs)}
            return [place[rid] for rid in self.runner.keep_order([req.rid for req in reqs])]
        except Exception:
            self._fail("the order of retraction")
            return native

    def after_step(self, batch: Any) -> None:
        """Tell the runner what the engine made of the plan."""
        self._restore(batch)
        if self._failed:
            return
        try:
            if (
                batch is not None
                and not self._preempted
                and batch.forward_mode.is_decode()
                and self._one_token_each
                and self.runner.scheduled_steadily(len(batch.reqs))
            ):
                return
            preempted, self._preempted = self._preempted, []
            if batch is None:
                # Nothing is computed, and no results will come.
                self.runner.preempted(preempted)
                return
            admitted: dict[str, int] = {}
            if batch.forward_mode.is_extend():
                for req, hit, _ in batches.prefills(batch):
                    if req.rid not in self._seated and req.rid in self._reqs:
                        admitted[req.rid] = int(hit)
                self._seated.update(admitted)
            self.runner.scheduled(batches.tokens(batch), admitted, preempted)
        except Exception:
            self._fail("booking a step")

    def queued(self, req: Any) -> None:
        """A request was put into the waiting queue: a new one, or one that lost its seat."""
        rid = req.rid
        self._waiting[rid] = req
        self._waiting_tokens += batches.tokens_of(req)
        if self._failed:
            return
        try:
            if rid in self._seated:
                self._seated.discard(rid)
                self._preempted.append(rid)
            elif rid.startswith(_HEALTH) or req.to_finish is not None:
                self._first[rid] = None
                self._reqs[rid] = req
            elif rid not in self._reqs:
                known = self._arrival_s_of
                arrival_s = None if known is None else known(rid)
                self._reqs[rid] = req
                self.runner.arrived(rid, self._facts(req, arrival_s))
        except Exception:
            self._fail("an arrival")

    def before_results(self, batch: Any) -> tuple[list[Any], list[int] | None]:
        """Requests of a batch that have not ended, and how many tokens each has put out.

        None where each will have one more.
        """
        steady = self._one_token_each and batch.forward_mode.is_decode()
        if steady and not self._lags:
            return batch.reqs, None
        live = batches.live(batch)
        if steady:
            return live, None
        return live, [len(req.output_ids) for req in live]

    def results(self, live: list[Any], before: list[int] | None) -> None:
        """Results of a step are in; what ``before_results`` gave is as it was then."""
        if self._failed:
            return
        try:
            # The clocks of two ranks differ.
            elapsed_s = self._step_s if self.several else self._clock() - self._tick_s
            if before is None:
                if not self.runner.produced_steadily(len(live), elapsed_s):
                    self.runner.produced({req.rid: 1 for req in live}, {}, elapsed_s)
            else:
                counts = [len(req.output_ids) - n for req, n in zip(live, before, strict=True)]
                steady = max(counts, default=0) <= 1
                if not (steady and self.runner.produced_steadily(sum(counts), elapsed_s)):
                    ids = [req.rid for req in live]
                    self.runner.produced(dict(zip(ids, counts, strict=True)), {}, elapsed_s)
            for req in [req for req in live if req.finished_reason is not None]:
                self.ended(req.rid, ends.how_ended(req) or Status.FINISHED)
        except Exception:
            self._fail("results")

    def ended(self, rid: str, status: Status) -> None:
        """A request ended, from whatever state."""
        self._reqs.pop(rid, None)
        self._leaves(rid)
        self._first.pop(rid, None)
        self._seated.discard(rid)
        if not self._failed:
            try:
                self.runner.finished(rid, status)
            except Exception:
                self._fail("an end")

    # --- its own ------------------------------------------------------------------------

    def _facts(self, req: Any, arrival_s: float | None) -> RequestFacts:
        return self._metadata.facts(req, arrival_s=arrival_s)

    def _plan(self, running_batch: Any) -> Plan:
        scheduler = self._scheduler
        if self.several:
            if self._ticked is None:
                raise RuntimeError("no tick has come from the first rank")
            tick = self._ticked
            self._ticked = tick._replace(predictions=None)
        else:
            tick = self.runner.tick()
        self._step_s, self._tick_s = tick.now_s - self._tick_s, tick.now_s
        self.runner.begin(tick)
        self._probe.running_batch = running_batch
        self._steps += 1
        if self._steps % RECONCILE_STEPS == 0:
            self._reconcile()
        if self._steps % PUBLISH_STEPS == 0:
            publish(self.runner.counters)
        return self.runner.plan(limits.free_blocks(scheduler), self._free_seats(running_batch))

    def _leaves(self, rid: str) -> None:
        """A request does not wait any more, if it did."""
        req = self._waiting.pop(rid, None)
        if req is not None:
            self._waiting_tokens -= batches.tokens_of(req)

    def _paged(self, chunk: int, admit: Sequence[str]) -> int:
        """A part of the prompt in flight that leaves the same room once all come in pages."""
        page = int(self._scheduler.page_size)
        room = limits.max_token_budget(self._scheduler) - chunk
        more = 0
        for rid in admit:
            tokens = batches.tokens_of(self._reqs[rid])
            room -= tokens
            if room < 0:
                break
            more += -tokens % page
        return max((chunk - more) // page, 1) * page

    def _refuse(self, rid: str, reason: str) -> None:
        req = self._reqs.pop(rid, None)
        self._leaves(rid)
        if req is not None:
            ends.refuse(self._scheduler, req, reason)

    def _reconcile(self) -> None:
        scheduler = self._scheduler
        waiting = [req.rid for req in scheduler.waiting_queue if req.rid not in self._first]
        self.runner.reconcile(waiting, [req.rid for req in batches.seated(scheduler)])

    def _fail(self, where: str) -> None:
        """Serve in order of arrival from now on; the engine must not stop for our fault."""
        self._failed = True
        self._offer, self.reserves, self.chunk = None, False, None
        self.runner.counters["adapter_faults"] += 1
        logger.exception(
            "batchpolicy failed at %s; serving in order of arrival from now on", where
        )
