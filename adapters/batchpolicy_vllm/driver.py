"""Between one vLLM scheduler and the policy runner."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

from batchpolicy.config import PolicyConfig
from batchpolicy.requests import Status
from batchpolicy.runner import EngineFacts, Plan, PolicyRunner
from batchpolicy_vllm import seams
from batchpolicy_vllm.metadata import Metadata
from batchpolicy_vllm.queue import PlannedQueue

logger = logging.getLogger(__name__)

RECONCILE_STEPS = 1000


class Driver:
    """Reports what the engine does, and carries out the plan; decides nothing.

    The runner guards against its policy; this class guards the engine against the
    runner: after a fault here the queue is served in order of arrival.
    """

    def __init__(
        self, scheduler: Any, config: PolicyConfig, clock: Callable[[], float], *, virtual: bool
    ) -> None:
        self._scheduler = scheduler
        self._virtual = virtual
        threshold = int(scheduler.scheduler_config.long_prefill_token_threshold)
        able = {"prefix", "preempt", "mixed", *(("truth",) if virtual else ())}
        self.runner = PolicyRunner(
            config,
            EngineFacts(
                max_running=seams.max_running(scheduler),
                max_token_budget=int(scheduler.max_num_scheduled_tokens),
                total_kv_blocks=seams.total_blocks(scheduler),
                kv_block_tokens=int(scheduler.block_size),
                clock=clock,
                max_prefill_chunk=threshold or None,
                chunks=bool(scheduler.scheduler_config.enable_chunked_prefill),
                max_loras=seams.max_loras(scheduler),
                decode_tokens=1 + int(scheduler.num_spec_tokens),
                live=not virtual,
                lag_steps=int(bool(scheduler.scheduler_config.async_scheduling)),
                capabilities=frozenset(able),
            ),
            seams.KvProbe(scheduler),
        )
        self._metadata = Metadata(config.requests, self.runner.counters)
        self.queue = PlannedQueue()
        seams.use_queue(scheduler, self.queue)
        self._one_token_each = not scheduler.num_spec_tokens
        """No step gives a request more than one token, and no end of a part goes on."""
        self._blocked: dict[str, Any] = {}
        self._preempted: list[str] = []
        self._refused: list[tuple[int, Any]] = []
        """Outputs for clients whose requests were refused or expired, and whose they are."""
        self._tick_s = clock()
        self._clock = clock
        self._steps = 0
        self._failed = False
        self.wake_s = math.inf
        """When to plan anew though nothing has happened; only a virtual clock need know."""

    def close(self) -> None:
        """The scheduler shuts down."""
        self.runner.close()

    def before_step(self) -> None:
        """Plan the step, displace, and put the plan on offer."""
        self.queue.offer(())
        if self._failed:
            self.queue.offer_all(but=seams.awaits_output)
            return
        try:
            plan = self._plan()
            self.wake_s = plan.wake_s
            requests = self._scheduler.requests
            if plan.limits is not None:
                seams.set_limits(self._scheduler, plan.limits)
            for request_id, reason in plan.refuse:
                self._refuse(request_id, reason)
            for request_id in plan.preempt:
                seams.preempt(self._scheduler, requests[request_id])
            if plan.reorder:
                ids = [r.request_id for r in self._scheduler.running]
                kept = self.runner.keep_order(ids)
                self._scheduler.running[:] = [requests[i] for i in kept]
            seams.keep_limits(self._scheduler)
            self.queue.offer(plan.admit)
        except Exception:
            self._fail("planning")
            self.queue.offer_all(but=seams.awaits_output)

    def after_step(self, output: Any) -> None:
        """Tell the runner what the engine made of the plan."""
        self.queue.withdraw()
        if self._failed:
            return
        try:
            seams.tell_preempted(output, self._preempted)
            self.runner.scheduled(
                output.num_scheduled_tokens, seams.admitted(output), self._preempted
            )
            self._watch_preempted()
        except Exception:
            self._fail("booking a step")

    def _refuse(self, request_id: str, reason: str) -> None:
        """End a request that the runner has given up; its client hears the reason."""
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return
        seams.end(self._scheduler, request)
        self._refused.append((request.client_index, seams.refusal(request_id, reason)))

    def arrived(self, request: Any) -> None:
        """A request was added."""
        if self._failed:
            return
        try:
            # A part of a session comes under the id of its first, and its last one is empty.
            request = self._scheduler.requests.get(request.request_id)
            if request is None:
                return
            # Sessions end part by part, which has to be looked for in each result.
            self._one_token_each = self._one_token_each and not request.resumable
            ready = not seams.is_blocked(self._scheduler, request)
            arrival_s = request.arrival_time if self._virtual else None
            facts = self._metadata.facts(request, arrival_s=arrival_s, ready=ready)
            self.runner.arrived(request.request_id, facts)
            if not ready:
                self._blocked[request.request_id] = request
        except Exception:
            self._fail("an arrival")

    def preempted(self, request: Any) -> None:
        """A request lost its seat, by our plan or by the engine."""
        self._preempted.append(request.request_id)

    def results(self, scheduled: Any, outputs: dict[int, Any]) -> None:
        """Results came back of the step that was ``scheduled``; refusals join them."""
        self._report(scheduled, outputs)
        for client, output in self._refused:
            seams.add_output(outputs, client, output)
        self._refused.clear()

    def _report(self, scheduled: Any, outputs: dict[int, Any]) -> None:
        if self._failed:
            return
        try:
            elapsed_s = self._clock() - self._tick_s
            if self._one_token_each and self.runner.produced_steadily(
                seams.result_count(outputs), elapsed_s
            ):
                for request_id in seams.ended(self._scheduler, outputs):
                    self._ended(request_id, Status.FINISHED)
                return
            produced: dict[str, int] = {}
            ended: list[str] = []
            for request_id, tokens, end in seams.results(outputs):
                produced[request_id] = tokens
                if end is not None:
                    ended.append(request_id)
            rejected = seams.rejected(self._scheduler, scheduled, produced)
            self.runner.produced(produced, rejected, elapsed_s)
            for request_id in ended:
                self._ended(request_id, Status.FINISHED)
                request = self._scheduler.requests.get(request_id)
                # A session goes on with its next part, if that has come.
                if request is not None and seams.goes_on(request):
                    self.arrived(request)
        except Exception:
            self._fail("results")

    def finished(self, ids: Iterable[str], status: Status) -> None:
        """Requests were ended from outside."""
        if self._failed:
            return
        try:
            for request_id in ids:
                self._ended(request_id, status)
        except Exception:
            self._fail("an end")

    def _plan(self) -> Plan:
        tick = self.runner.tick()
        self._tick_s = tick.now_s
        self.runner.begin(tick)
        if self._preempted:
            # Between two steps, by a reset of the prefix cache.
            self.runner.preempted(self._preempted)
            self._watch_preempted()
        self._steps += 1
        if self._steps % RECONCILE_STEPS == 0:
            self._reconcile()
        scheduler = self._scheduler
        if self._blocked:
            for request in [r for r in self._blocked.values() if seams.unblock(scheduler, r)]:
                del self._blocked[request.request_id]
                self.runner.ready(request.request_id, True)
        if not seams.admits(scheduler):
            return Plan()
        return self.runner.plan(
            seams.free_blocks(scheduler),
            seams.free_seats(scheduler),
            kept_blocks=seams.watermark_blocks(scheduler),
        )

    def _watch_preempted(self) -> None:
        """Keep preempted requests back while output of theirs is in flight."""
        for request_id in self._preempted:
            request = self._scheduler.requests.get(request_id)
            if request is not None and seams.is_blocked(self._scheduler, request):
                self._blocked[request_id] = request
                self.runner.ready(request_id, False)
        self._preempted.clear()

    def _ended(self, request_id: str, status: Status) -> None:
        self._blocked.pop(request_id, None)
        self.runner.finished(request_id, status)

    def _reconcile(self) -> None:
        scheduler = self._scheduler
        waiting = [r.request_id for r in (*self.queue, *seams.holding(scheduler))]
        self.runner.reconcile(waiting, [r.request_id for r in scheduler.running])

    def _fail(self, where: str) -> None:
        """Serve in order of arrival from now on; the engine must not stop for our fault."""
        self._failed = True
        self.runner.counters["adapter_faults"] += 1
        logger.exception(
            "batchpolicy failed at %s; serving in order of arrival from now on", where
        )
