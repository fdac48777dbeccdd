"""Steps as SGLang's scheduler fills them, without overlap and mixed chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from batchpolicy.engine import EngineLimits
from batchpolicy.policy import Limits
from batchpolicy.runner import Plan
from batchpolicy_sim.batch import Batch
from batchpolicy_sim.job import RUNNING, Job
from batchpolicy_sim.semantics.pass_budget import PassBudget, Ratio
from batchpolicy_sim.semantics.step import KeepOrder, Semantics, Step


class SglangSemantics(Semantics):
    """A step prefills if anybody can start or is midway, and else decodes.

    A prefill pass goes through the queue until a request does not fit into what is
    reserved, and is not tried again before somebody leaves. Short of blocks for the next
    decodes, the requests with the fewest tokens put out lose theirs.
    """

    joins: ClassVar[bool] = False
    closes: ClassVar[bool] = False
    requeues_last: ClassVar[bool] = True
    refuses_late: ClassVar[bool] = False
    facts: ClassVar[Mapping[str, Any]] = {
        "mixed": False,
        "max_partial": 1,
        "start_blocks": 1,
        "capabilities": frozenset({"prefix", "preempt", "truth"}),
    }

    def __init__(self, batch: Batch, limits: EngineLimits, by_priority: bool) -> None:
        self.seats = limits.max_num_seqs
        self._batch = batch
        self._limits = limits
        self._page = limits.kv_block_tokens
        self._prefill_tokens = limits.max_num_batched_tokens
        self._chunk_tokens = limits.max_num_batched_tokens if limits.chunked_prefill else None
        self._ratio = Ratio()
        self._running: list[Job] = []
        """All that decode, in SGLang's order."""
        self._last: list[Job] = []
        """What the step before prefilled."""
        self._midway: Job | None = None
        self._to_abort: Job | None = None
        """The same, if its client has left: it ends where the next step begins."""
        self._full = False
        """Nobody else could start until somebody leaves."""
        self._cap: int | None = None
        """Most tokens of the prompt that is midway, by the policy."""
        self._part: int | None = None
        self._defer = False
        self._planned = False
        self._keep_order: KeepOrder | None = None

    # --- what comes and goes --------------------------------------------------------------

    @override
    def admits(self, job: Job) -> bool:
        r, page = job.request, self._page
        pool = self._limits.kv_blocks * page
        paged = -(-job.prompt // page) * page
        return (
            job.prompt + job.wanted <= min(self._limits.max_model_len, pool - 2)
            and job.prompt < pool - 6
            and paged + job.wanted <= pool - page - 1
            and r.prompt_tokens > 0
        )

    @override
    def never_fits(self, job: Job) -> bool | None:
        return False

    @override
    def arrived(self, job: Job) -> None:
        page = self._page
        pool = self._limits.kv_blocks * page
        paged = -(-job.prompt // page) * page
        # Six positions more than the model has are said to be there.
        longest = min(self._limits.max_model_len + 5, pool - 1)
        job.most = max(min(job.most, longest - job.prompt - 1, pool - paged - page - 1), 1)

    @override
    def cancel(self, job: Job) -> bool:
        if job.state != RUNNING:
            return True
        job.aborting = True
        if job is self._midway:
            self._to_abort = job
        return False

    @override
    def begin(self) -> list[Job]:
        ended: list[Job] = []
        midway = self._midway
        if midway is not None and midway is self._to_abort:
            self._midway = None
            ended.append(midway)
        self._to_abort = None
        last, self._last = self._last, []
        here = [job for job in last if job is not midway and job.state == RUNNING]
        if len(here) < len(last):
            self._full = False
        if here and not self._running:
            self._running, self._full = here, False
        else:
            self._running += here
        self._filter()
        return ended

    def _filter(self) -> None:
        before = len(self._running)
        self._running = [job for job in self._running if job.state == RUNNING]
        if len(self._running) < before:
            self._full = False

    # --- a policy ---------------------------------------------------------------------------

    @override
    def set_limits(self, limits: Limits) -> None:
        if limits.max_running is not None:
            self.seats = max(limits.max_running, 1)
        if limits.token_budget is not None:
            if self._chunk_tokens is not None:
                self._chunk_tokens = max(limits.token_budget // self._page, 1) * self._page
            self._prefill_tokens = limits.token_budget
        self._cap = limits.prefill_chunk

    @override
    def free_blocks(self) -> int:
        return max(self._batch.pool.free * self._page - 1, 0) // self._page

    @override
    def free_seats(self) -> int:
        taken = len(self._running) + (self._midway is not None)
        return min(self.seats - taken, self._rows())

    @override
    def follow(self, plan: Plan, keep_order: KeepOrder) -> list[Job]:
        self._planned = True
        self._keep_order = keep_order
        going = set(plan.preempt)
        displaced = [job for job in self._running if job.id in going]
        for job in displaced:
            self._batch.preempt(job)
        if going:
            self._running = [job for job in self._running if job.id not in going]
            self._full = False
        admit = [] if plan.decode else [i for i in plan.admit if i in self._batch.jobs]
        if admit:
            self._full = False
        midway = self._midway is not None
        # Without blocks for the decodes, SGLang would end the last of them.
        short = midway and self._need(self._running) > self._batch.pool.free
        self._defer = (plan.decode and not short) or not (admit or midway)
        self._part = None if self._cap is None else self._paged(self._cap, admit)
        return displaced

    @override
    def may_go(self, job: Job) -> bool:
        return job in self._running

    def _paged(self, cap: int, admit: list[str]) -> int:
        """A part of the prompt midway that leaves the same room once all come in pages."""
        most = self._prefill_tokens
        if self._chunk_tokens is not None:
            most = min(most, self._chunk_tokens)
        room, more = most - cap, 0
        for i in admit:
            job = self._batch.jobs[i]
            tokens = job.prompt + job.out
            room -= tokens
            if room < 0:
                break
            more += -tokens % self._page
        return max((cap - more) // self._page, 1) * self._page

    # --- steps ------------------------------------------------------------------------------

    @override
    def schedule(self) -> Step:
        step = Step({})
        if not self._defer and self._prefill(step):
            return step
        if self._running:
            self._decode(step)
        return step

    def _rows(self) -> int:
        taken = len(self._running) + (self._midway is not None)
        return self._limits.max_num_seqs - taken

    def _prefill(self, step: Step) -> bool:
        batch, running = self._batch, self._running
        if not running:
            self._full = False
        if (self._full or not batch.waiting) and self._midway is None:
            return False
        if self.free_seats() <= 0 and self._midway is None:
            self._full = True
            return False
        budget = PassBudget(
            batch.pool.free * self._page,
            self._page,
            self._prefill_tokens,
            self._chunk_tokens,
            self._ratio.value,
            running,
            ahead=self._looks_ahead,
        )
        first = self._midway
        if first is not None:
            cap = self._part if self._planned else None
            if not budget.go_on(first, cap):
                self._midway = None
        goes_on = self._midway is not None
        queue = batch.queue
        while not budget.spent:
            job = queue.head()
            if job is None:
                break
            most = min(self.seats, self._limits.max_num_seqs) - len(running)
            if len(budget.chosen) >= most:
                self._full = True
            if self._full:
                break
            if self._planned and goes_on and not budget.fits_whole(job):
                break
            found = budget.start(job)
            if found is False:
                break
            if found is None:
                self._full = bool(budget.chosen) or bool(running)
                break
            queue.pop()
            if budget.exhausted:
                self._full = True
                break
        if not budget.chosen:
            return False
        for job, n in budget.chosen:
            batch.pool.grow(job, job.computed + n)
            if job.state != RUNNING:
                batch.seat(job, n)
                step.admitted[job.id] = 0
            step.add(job, n)
        if budget.partial is not None:
            self._midway = budget.partial
        self._last = [job for job, _ in budget.chosen]
        step.tokens = {job.id: n for job, n in budget.chosen}
        return True

    @property
    def _looks_ahead(self) -> bool:
        return self._planned and self.looks_ahead

    def _decode(self, step: Step) -> None:
        batch, running = self._batch, self._running
        before = len(running)
        if self._need(running) > batch.pool.free:
            self._retract(step)
        else:
            self._ratio.decay()
        running = self._running
        if len(running) < before:
            self._full = False
        for job in running:
            batch.pool.grow(job, job.computed + 1)
            step.add(job, 1)
        step.tokens = {job.id: 1 for job in running}

    def _need(self, jobs: list[Job]) -> int:
        """Blocks that the next token of each takes."""
        return sum(job.computed % self._page == 0 for job in jobs)

    def _retract(self, step: Step) -> None:
        batch, running = self._batch, self._running
        if self._keep_order is None:
            kept = sorted(running, key=_longest_answer, reverse=True)
        else:
            kept = [batch.jobs[i] for i in self._keep_order([job.id for job in running])]
        while len(kept) > 1 and (not step.preempted or self._need(kept) > batch.pool.free):
            job = kept.pop()
            step.preempted.append(job)
            batch.pool.release(job)
        self._running = kept
        self._ratio.after_retraction(kept)
        for job in step.preempted:
            batch.preempt(job)


def _longest_answer(job: Job) -> tuple[int, int]:
    return job.out, -job.prompt
