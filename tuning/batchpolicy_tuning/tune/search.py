"""The search itself, for whatever can be measured: one trial after another."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from batchpolicy.errors import BatchPolicyError, StepLimitReached
from batchpolicy_tuning.tune.judging import Goal, Limit, judge
from batchpolicy_tuning.tune.ledger import Claim, Ledger
from batchpolicy_tuning.tune.records import (
    ENDED,
    Outcome,
    Part,
    TrialRecord,
    Value,
)
from batchpolicy_tuning.tune.sampler import Proposer, Seen
from batchpolicy_tuning.tune.space import Space
from batchpolicy_tuning.tune.stopping import reason_to_stop

MOST_DEATHS = 2
"""Workers that may die at one setting before it counts as failed."""
Measured = TypeVar("Measured")


class TrialFailed(BatchPolicyError):
    """A setting gave no result that could be compared."""


class TimedOut(BaseException):
    """A trial took too long.

    No ``Exception``: what guards an engine against faults of its policy must not catch it.
    """


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting to measure."""

    origin: Literal["baseline", "given", "sampled"]
    label: str
    key: str
    """Equal for equal settings."""
    params: Mapping[str, Value]
    setting: Mapping[str, Value]


class Problem(Protocol[Measured]):
    """What is searched, and how a setting is measured."""

    @property
    def space(self) -> Space:
        """What may be chosen."""
        ...

    @property
    def limits(self) -> Sequence[Limit]:
        """What must hold."""
        ...

    @property
    def goals(self) -> Sequence[Goal]:
        """What is to be improved."""
        ...

    @property
    def instances(self) -> Sequence[str]:
        """Names of the workloads, slices and seeds that each setting is measured on."""
        ...

    @property
    def first(self) -> Sequence[Candidate]:
        """Settings that are measured before any is searched: the baseline, and those given."""
        ...

    def candidate(self, params: Mapping[str, Value]) -> Candidate:
        """The setting of these parameters."""
        ...

    def measure(self, candidate: Candidate, instance: int) -> Measured:
        """Measure it on one instance.

        Raises
        ------
        BatchPolicyError
            When it gives no result; a ``StepLimitReached`` counts as a time-out.
        """
        ...

    def values(self, measured: Sequence[Measured]) -> Mapping[str, float]:
        """Values over instances together, the objectives first; absent where not measured."""
        ...


@dataclass(frozen=True, slots=True)
class Course:
    """How a search goes about it."""

    trials: int
    level: float = 0.1
    """Of the test that ends a trial early; 0 for never."""
    timeout_s: float = float("inf")
    """Longest time of one trial."""
    salt: int = 0
    """Different for workers that share a storage."""


class Search(Generic[Measured]):
    """Runs trials of a problem until there are enough, or no setting is left."""

    def __init__(
        self,
        problem: Problem[Measured],
        ledger: Ledger,
        proposer: Proposer,
        course: Course,
        told: Callable[[TrialRecord], None] = lambda _: None,
    ) -> None:
        self._problem = problem
        self._ledger = ledger
        self._proposer = proposer
        self._course = course
        self._told = told

    def run(self, wait_s: float = 0.0) -> None:
        """Go on until as many trials as asked for have begun, or no setting is left.

        With ``wait_s`` it then looks every so often whether those of other workers end; the
        settings of workers that are gone are tried again.
        """
        while True:
            if self.step():
                continue
            if not (wait_s and self._others_run()):
                return
            time.sleep(wait_s)

    def _others_run(self) -> bool:
        return any(one.outcome is Outcome.RUNNING for one in self._ledger.records())

    def step(self) -> bool:
        """One trial; False when there is nothing more for this worker to do."""
        self._ledger.sweep()
        records = self._ledger.records()
        alive = [one for one in records if one.outcome in ENDED or one.outcome is Outcome.RUNNING]
        if len(alive) >= self._course.trials:
            return False
        chosen = self._next(records, alive)
        if chosen is None:
            return False
        candidate, attributes = chosen
        claim = self._ledger.claim(
            TrialRecord(
                number=-1,
                origin=candidate.origin,
                label=candidate.label,
                key=candidate.key,
                parameters=dict(candidate.params),
                setting=dict(candidate.setting),
                outcome=Outcome.RUNNING,
                planned=len(self._problem.instances),
                sampler_attributes=dict(attributes),
            ),
            most=self._course.trials,
        )
        if claim is None:
            return True  # another worker was there first; look again
        deaths = sum(one.key == candidate.key and _died(one) for one in records)
        if deaths >= MOST_DEATHS:
            ended = claim.record.model_copy(
                update={
                    "outcome": Outcome.FAILED,
                    "reason": f"{deaths} workers died at it; it may need too much memory",
                }
            )
        else:
            ended = self._evaluated(claim, candidate)
        if self._ledger.end(claim, ended):
            self._told(ended)
        return True

    def _next(
        self, records: Sequence[TrialRecord], alive: Sequence[TrialRecord]
    ) -> tuple[Candidate, Mapping[str, object]] | None:
        """What to try: the given settings, those that a worker left, then the sampler's."""
        known = {one.key for one in alive}
        for candidate in self._problem.first:
            if candidate.key not in known:
                return candidate, {}
        for one in records:
            if one.outcome is Outcome.LOST and one.origin == "sampled" and one.key not in known:
                left = self._problem.candidate(one.parameters)
                return left, one.sampler_attributes
        proposal = self._proposer.propose(
            [self._seen(one) for one in alive],
            known,
            lambda params: self._problem.candidate(params).key,
            self._course.salt,
        )
        if proposal is None:
            return None
        return self._problem.candidate(proposal.params), proposal.attributes

    def _seen(self, one: TrialRecord) -> Seen:
        losses = tuple(goal.loss(one.values) for goal in self._problem.goals)
        known = one.outcome in (Outcome.FEASIBLE, Outcome.INFEASIBLE, Outcome.PRUNED)
        return Seen(
            params=one.parameters,
            losses=losses if known and all(x - x == 0.0 for x in losses) else None,
            misses=tuple(target.miss for target in one.targets),
            running=one.outcome is Outcome.RUNNING,
            attributes=one.sampler_attributes,
        )

    def _evaluated(self, claim: Claim, candidate: Candidate) -> TrialRecord:
        started = time.perf_counter()
        parts: list[Part] = []
        measured: list[Measured] = []
        result: dict[str, object]
        try:
            with self._ledger.beating(claim), _at_most(self._course.timeout_s):
                result = self._measured(candidate, measured, parts)
        except (StepLimitReached, TimedOut) as over:
            said = str(over) or f"not done after {self._course.timeout_s:g} s"
            result = {"outcome": Outcome.TIMED_OUT, "reason": said}
        except BatchPolicyError as fault:
            result = {"outcome": Outcome.FAILED, "reason": str(fault)}
        except BaseException:
            self._ledger.lose("interrupted", claim)
            raise
        return claim.record.model_copy(
            update={**result, "parts": tuple(parts), "wall_s": time.perf_counter() - started}
        )

    def _measured(
        self, candidate: Candidate, measured: list[Measured], parts: list[Part]
    ) -> dict[str, object]:
        problem = self._problem
        others = self._ledger.trials()
        stopped = ""
        for k, name in enumerate(problem.instances):
            measured.append(problem.measure(candidate, k))
            parts.append(Part(instance=name, values=dict(problem.values(measured[-1:]))))
            if k + 1 < len(problem.instances) and candidate.origin == "sampled":
                so_far = [part.values for part in parts]
                stopped = reason_to_stop(
                    problem.limits, problem.goals, so_far, others, self._course.level
                )
                if stopped:
                    break
        values = problem.values(measured)
        verdict = judge(problem.limits, problem.goals, values)
        result: dict[str, object] = {
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "values": dict(values),
            "targets": verdict.targets,
        }
        if stopped and verdict.outcome is not Outcome.FAILED:
            result |= {"outcome": Outcome.PRUNED, "reason": stopped}
        return result


def _died(one: TrialRecord) -> bool:
    return one.outcome is Outcome.LOST and one.reason != "interrupted"


@contextmanager
def _at_most(seconds: float) -> Generator[None, None, None]:
    """Raise ``TimedOut`` inside when it takes longer; only the main thread can be stopped."""
    main = threading.current_thread() is threading.main_thread()
    if seconds == float("inf") or not main:
        yield
        return

    def over(*_: object) -> None:
        raise TimedOut

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
