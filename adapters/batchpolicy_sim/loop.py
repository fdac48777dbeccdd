"""Arrivals, steps and results on a virtual clock."""

from __future__ import annotations

import math

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits, Observer, StepRecord
from batchpolicy.errors import StepLimitReached, WorkloadError
from batchpolicy.requests import Status
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_sim.batch import Batch
from batchpolicy_sim.books import Books
from batchpolicy_sim.driver import Driver
from batchpolicy_sim.ends import Ends
from batchpolicy_sim.events import Outside
from batchpolicy_sim.full_queue import FullQueue
from batchpolicy_sim.job import Job
from batchpolicy_sim.kv.text import Texts
from batchpolicy_sim.queues import NativeQueue, PlannedQueue
from batchpolicy_sim.semantics import SEMANTICS, Step
from batchpolicy_sim.stretch import stretch


class Loop:
    """Serves one workload, one step after another.

    A step is planned when the results of the one before it are in. Stretches in which
    the same requests decode and nobody else could start are gone through without
    planning each step; their times are the sums that planned steps would give.
    """

    def __init__(
        self,
        workload: Workload,
        limits: EngineLimits,
        cost: StepCost,
        config: PolicyConfig | None,
        semantics: str,
    ) -> None:
        self.now_s = 0.0
        self.books = Books(workload)
        self._name = workload.name
        self._cost = cost
        self._outside = Outside(workload)
        order = "fcfs" if config is None else config.native_order()
        planned = PlannedQueue()
        made = SEMANTICS[semantics]
        queue = planned if order is None else NativeQueue(order, anew=made.requeues_last)
        self._batch = batch = Batch(limits, queue)
        self._semantics = made(batch, limits, order == "priority")
        if config is not None and config.memory is not None:
            self._semantics.looks_ahead = config.memory.look_ahead
        self.driver: Driver | None = None
        if config is not None and order is None:
            self.driver = Driver(
                config, limits, batch, planned, self._semantics, lambda: self.now_s
            )
        ttl_s = math.inf if config is None or config.queue is None else config.queue.ttl_s
        self._ends = Ends(batch, limits, ttl_s, self._semantics, native=self.driver is None)
        self._full = FullQueue(batch, limits.max_waiting)
        self._texts = (
            Texts(workload.requests, limits.kv_block_tokens) if limits.prefix_cache else None
        )
        self._loras: dict[str, int] = {}
        self._stuck = False
        """Nobody could start before somebody ends or arrives."""
        self._refused = False
        """A request was ended by the step before, without having run."""
        self._leaving = 0
        """Jobs whose clients have left, and that the engine has not let go."""

    def run(self, max_steps: int, observer: Observer | None) -> None:
        """Serve until every request has ended.

        Raises
        ------
        StepLimitReached
            After ``max_steps`` steps.
        WorkloadError
            When requests wait that nothing will start.
        """
        batch, books, outside, ends = self._batch, self.books, self._outside, self._ends
        jumps = observer is None and self.driver is None
        while books.open:
            self._enter()
            if len(batch.jobs) == self._leaving:
                if outside.more:
                    self.now_s = max(self.now_s, outside.next_arrival_s)
                    self._enter()
                    continue
                break
            if books.steps >= max_steps:
                raise StepLimitReached(
                    f"workload {self._name!r}: {max_steps} steps did not serve it, "
                    f"{books.open} of {books.count} requests are left. Lower the load, or "
                    "raise max_steps."
                )
            if jumps and self._stuck and not batch.rest and batch.decodes.count:
                steps = max_steps - books.steps
                until_s = min(outside.next_s, ends.next_s)
                self.now_s, taken = stretch(batch, self._cost, self.now_s, until_s, steps)
                books.steps += taken
                if outside.next_s <= self.now_s or books.steps >= max_steps:
                    continue
            if not self._step(observer):
                self._wait()
        if self._semantics.closes and not self._refused:
            # One more step tells the workers of the last requests that ended.
            books.steps += 1

    def _enter(self) -> None:
        """Requests that have come by now join the queue; clients that left, leave."""
        outside, now_s, batch, driver = self._outside, self.now_s, self._batch, self.driver
        # A cancellation may let a follower come at once.
        while outside.next_s <= now_s:
            self._stuck = False
            for job in outside.arrivals(now_s):
                self._arrived(job)
            for job in outside.ready(now_s):
                if job.id in batch.jobs:
                    job.ready = True
                    batch.queue.now_ready(job)
                    if driver is not None:
                        driver.ready(job)
            for request_id in outside.cancels(now_s):
                leaving = batch.jobs.get(request_id)
                if leaving is None or leaving.aborting:
                    continue
                if self._semantics.cancel(leaving):
                    self._end(leaving, Status.ABORTED, now_s)
                else:
                    # What is still computed for it, its client never sees.
                    self._leaving += 1
                    self._ended(leaving, Status.ABORTED, now_s)

    def _arrived(self, job: Job) -> None:
        r = job.request
        if r.lora:
            job.lora = self._loras.setdefault(r.lora, len(self._loras) + 1)
        job.encoder = r.encoder_tokens
        if not self._semantics.admits(job):
            self.books.arrived(job)
            self._ended(job, Status.REFUSED, self.now_s)
            return
        self._semantics.arrived(job)
        if self._texts is not None:
            job.chain = self._texts.chain(r)
        self.books.arrived(job)
        self._batch.arrived(job)
        self._ends.arrived(job)
        if self.driver is not None:
            self.driver.arrived(job)

    def _end(self, job: Job, status: Status, now_s: float) -> None:
        """A request ends before its last token, and not by a plan."""
        self._batch.end(job)
        self._ended(job, status, now_s)
        if self.driver is not None:
            self.driver.runner.finished(job.id, status)

    def _ended(self, job: Job, status: Status, now_s: float) -> None:
        self._stuck = False
        self.books.end(job, status, now_s)
        self._outside.ended(job, now_s)

    def _wait(self) -> None:
        """Nothing could be computed: go to the next event, which must exist."""
        if not self._batch.jobs:
            return
        # Under a policy the runner knows who ends in the queue, and when.
        by_itself_s = self._ends.next_s if self.driver is None else self.driver.wake_s
        at_s = min(self._outside.next_s, by_itself_s)
        if at_s == math.inf:
            raise WorkloadError(
                f"workload {self._name!r}: the engine computes nothing although "
                f"{len(self._batch.jobs)} requests wait."
            )
        self.now_s = max(self.now_s, at_s)

    def _step(self, observer: Observer | None) -> bool:
        """Go through one step; tells whether anything went on."""
        batch, books, driver = self._batch, self.books, self.driver
        start_s = self.now_s
        for job in self._semantics.begin():
            batch.end(job)
            self._leaving -= 1
            if driver is not None:
                driver.runner.finished(job.id, Status.ABORTED)
        refused = self._ends.take(start_s)
        for job, _ in refused:
            batch.end(job)
            if driver is not None:
                driver.runner.finished(job.id, Status.ABORTED)
        planned: list[str] = []
        if driver is not None:
            planned, by_plan = driver.before_step()
            refused += by_plan
        late = self._semantics.refuses_late
        if not late:
            for job, status in refused:
                self._ended(job, status, start_s)
        step = self._semantics.schedule()
        if driver is not None:
            driver.after_step(step)
        books.steps += 1
        self._stuck = step.stuck
        self._refused = bool(refused) and not batch.jobs
        preempted = planned + [job.id for job in step.preempted]
        if preempted and self._leaving:
            # Of these no client hears any more.
            preempted = [i for i in preempted if not batch.jobs[i].aborting]
        self._book_admissions(step, start_s)
        for job in self._full.refused():
            self._end(job, Status.REFUSED, start_s)
        if batch.waiting > books.peak_waiting:
            books.peak_waiting = batch.waiting
        tokens = step.tokens
        end_s = start_s
        if tokens:
            end_s += self._cost(step.shape())
        if observer is not None:
            observer(
                StepRecord(
                    index=books.steps - 1,
                    start_s=start_s,
                    duration_s=end_s - start_s,
                    tokens=dict(tokens),
                    preempted=tuple(sorted(preempted)),
                    running=len(batch.running),
                    waiting=batch.waiting,
                    free_kv_blocks=batch.pool.free,
                )
            )
        self.now_s = end_s
        # vLLM admits nobody in a step that preempts, so there may be nothing to compute.
        went_on = bool(tokens or planned or step.preempted or (refused and not late))
        if tokens:
            ended, midway = self._results(step, end_s)
        else:
            ended, midway = [], []
        if driver is not None and (tokens or self._semantics.closes):
            driver.results(step, end_s - start_s, ended, midway)
        for job, status in refused if late else ():
            self._ended(job, status, end_s)
        for job in ended:
            batch.emitted_last(job)
            if job.aborting:
                self._leaving -= 1
            else:
                self._ended(job, Status.FINISHED, end_s)
        return went_on

    def _book_admissions(self, step: Step, now_s: float) -> None:
        books, jobs = self.books, self._batch.jobs
        for request_id, hit in step.admitted.items():
            job = jobs[request_id]
            if not job.started:
                job.started = True
                books.first_scheduled_s[job.place] = now_s
                books.cached[job.place] = hit

    def _results(self, step: Step, end_s: float) -> tuple[list[Job], list[str]]:
        """Jobs that emitted their last token, in the engine's order, and ids without a token."""
        batch, books = self._batch, self.books
        decodes, running, joins = batch.decodes, batch.running, self._semantics.joins
        beat = decodes.beat
        decodes.advance(end_s)
        ended: list[Job] = decodes.ending.pop(beat, [])
        midway: list[str] = []
        for job in ended:
            decodes.leave(job, ended=True)
        if not step.worked:
            if len(ended) > 1:
                ended.sort(key=_pos)
            return ended, midway
        for job, n in step.worked:
            before = job.computed
            after = job.computed = before + n
            if job.reached > before and not job.aborting:
                books.recomputed[job.place] += min(job.reached, after) - before
            if after < job.prompt + job.out:
                midway.append(job.id)
                continue
            running[job.id] = 1
            job.out += 1
            if job.aborting:
                ended.append(job)
                continue
            if job.out == 1:
                books.first_token_s[job.place] = end_s
            else:
                job.gap_s = max(job.gap_s, end_s - job.last_token_s)
            job.last_token_s = end_s
            if job.encoder and batch.encoded(job):
                self._stuck = False
            if job.out == job.wanted:
                ended.append(job)
            elif joins:
                decodes.join(job)
        if not joins:
            gone = set(map(id, ended))
            batch.rest = [job for job in batch.rest if id(job) not in gone]
            return ended, midway
        if midway or len(step.worked) < len(batch.rest):
            batch.rest = [job for job in batch.rest if not job.steady and job.out < job.wanted]
        else:
            batch.rest.clear()
        ended.sort(key=_pos)
        return ended, midway


def _pos(job: Job) -> int:
    return job.pos
