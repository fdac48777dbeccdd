"""A run, worked out again from its step plans alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.workload import WorkloadRequest
from batchpolicy_tuning.cases.states import END_STATES
from batchpolicy_tuning.cases.stints import inferred_hit, stints

TOLERANCE_S = 1e-9
"""Times that are closer are the same."""


@dataclass(slots=True)
class Course:
    """What became of one request."""

    request: WorkloadRequest
    place: int
    """Its row in the run, and its rank in submission."""
    arrival_s: float
    ready_s: float
    """From when on it could start."""
    state: str
    """End state, as the run says; else ``waiting`` or ``running``."""
    end_s: float
    """As the run says; NaN if it has not ended."""
    wanted: int
    """Tokens that it should emit."""
    first_scheduled_s: float = math.nan
    token_s: list[float] = field(default_factory=list[float])
    """When each of its tokens came out."""
    preemptions: int = 0
    prefilled: int = 0
    """Tokens of prefills, recomputation included."""
    decoded: int = 0
    recomputed: int = 0
    fresh_to: int = 0
    """Most tokens that were ever computed of it."""
    computed: int = 0
    """Tokens in its KV."""
    running: bool = False
    guessed: bool = False
    """What it found in the prefix cache when it started again does not follow from the plans."""

    @property
    def first_token_s(self) -> float:
        """When its first token came out, or NaN."""
        return self.token_s[0] if self.token_s else math.nan

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two of its tokens."""
        pairs = pairwise(self.token_s)
        return max((b - a for a, b in pairs), default=0.0)

    @property
    def needed(self) -> int:
        """Tokens that it lacks before its next one comes out."""
        return self.request.prompt_tokens + len(self.token_s) - self.computed


@dataclass(frozen=True, slots=True)
class Work:
    """One step, and who ran in it."""

    index: int
    start_s: float
    end_s: float
    tokens: Mapping[str, int]
    held: Mapping[str, int]
    """Tokens in the KV of each running request, when the step is over."""
    prefilling: frozenset[str]
    """Running requests whose prompt was not computed before the step."""
    prefill_tokens: int
    decodes: int
    fresh: bool
    """Something was computed that never was before."""
    waiting: int
    """Requests that wait and have never started."""
    free_kv_blocks: int
    guessed: bool
    """What somebody found in the prefix cache was inferred."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole run."""

    run: Run
    limits: EngineLimits
    records: Sequence[StepRecord]
    courses: Mapping[str, Course]
    works: Sequence[Work]
    faults: Sequence[tuple[str, str]]
    """Invariant and text of what no order of events explains."""

    @property
    def end_s(self) -> float:
        """When the last request ended, or the last step."""
        ends = [c.end_s for c in self.courses.values() if not math.isnan(c.end_s)]
        return max([*ends, *(w.end_s for w in self.works)], default=0.0)


def trace_of(run: Run, records: Sequence[StepRecord], limits: EngineLimits) -> Trace:
    """The trace of a run from what its observer saw."""
    builder = _Builder(run, records, limits)
    for record in records:
        builder.step(record)
    return Trace(run, limits, records, builder.courses, builder.works, builder.faults)


class _Builder:
    def __init__(self, run: Run, records: Sequence[StepRecord], limits: EngineLimits) -> None:
        self.courses = {
            r.id: _course(run, place, r) for place, r in enumerate(run.workload.requests)
        }
        self.works: list[Work] = []
        self.faults: list[tuple[str, str]] = []
        self._run = run
        self._block = limits.kv_block_tokens
        self._cached = limits.prefix_cache
        self._stints = stints(records)
        self._running: dict[str, Course] = {}

    def step(self, record: StepRecord) -> None:
        for course in list(self._running.values()):
            if course.end_s <= record.start_s + TOLERANCE_S:
                self._left(course)
        for request_id in record.preempted:
            self._preempted(record, request_id)
        end_s = record.start_s + record.duration_s
        prefill = decodes = 0
        fresh = False
        prefilling: set[str] = set()
        emitting: list[Course] = []
        for request_id, n in record.tokens.items():
            computing = self._computes(record, request_id)
            if computing is None:
                continue
            course = computing
            if course.computed < course.request.prompt_tokens:
                prefilling.add(request_id)
            needed = course.needed
            if n > needed or n < 1:
                self._fault(
                    "I2", record, request_id, f"computes {n} tokens, expected 1 to {needed}"
                )
            if course.token_s and needed == 1:
                decodes += 1
                course.decoded += n
            else:
                prefill += n
                course.prefilled += n
            before = course.computed
            course.computed = before + n
            course.recomputed += max(0, min(course.fresh_to, course.computed) - before)
            if course.computed > course.fresh_to:
                course.fresh_to = course.computed
                fresh = True
            if n >= needed:
                emitting.append(course)
        self.works.append(
            Work(
                index=record.index,
                start_s=record.start_s,
                end_s=end_s,
                tokens=record.tokens,
                held={i: course.computed for i, course in self._running.items()},
                prefilling=frozenset(
                    prefilling
                    | {i for i, c in self._running.items() if c.computed < c.request.prompt_tokens}
                ),
                prefill_tokens=prefill,
                decodes=decodes,
                fresh=fresh,
                waiting=record.waiting - self._displaced(end_s),
                free_kv_blocks=record.free_kv_blocks,
                guessed=self._cached and any(c.preemptions for c in self._running.values()),
            )
        )
        for course in emitting:
            course.token_s.append(end_s)
            if len(course.token_s) >= course.wanted:
                self._left(course)

    def _computes(self, record: StepRecord, request_id: str) -> Course | None:
        """The request, running; None if there is none of that name."""
        course = self.courses.get(request_id)
        if course is None:
            self.faults.append(("I3", f"step {record.index}: {request_id!r} is no request"))
            return None
        start_s = record.start_s
        if start_s < course.ready_s - TOLERANCE_S:
            came = f"which can start from {course.ready_s:g} s on"
            self._fault("I3", record, request_id, f"runs at {start_s:g} s, {came}")
        if course.end_s <= start_s + TOLERANCE_S or len(course.token_s) >= course.wanted:
            self._fault("I3", record, request_id, f"runs at {start_s:g} s, after its end")
        if not course.running:
            course.running = True
            self._running[request_id] = course
            stint = next(self._stints[request_id])
            if math.isnan(course.first_scheduled_s):
                course.first_scheduled_s = start_s
                course.computed = int(self._run.cached_tokens[course.place])
                course.fresh_to = course.computed
            elif self._cached:
                course.computed = self._hit(course, stint)
        return course

    def _hit(self, course: Course, stint: Sequence[tuple[int, float]]) -> int:
        """Tokens that a request found in the prefix cache when it started again.

        Whole stints tell: what was computed up to its next token is what was missing. When
        that came, the run says for the first token, and by their number for the last ones.
        """
        if not course.token_s:
            first_s = float(self._run.first_token_s[course.place])
            done = [n for n, end_s in stint if end_s <= first_s + TOLERANCE_S]
            came = len(done) > 0 and abs(stint[len(done) - 1][1] - first_s) <= TOLERANCE_S
            return max(0, course.needed - sum(done)) if came else 0
        if self._stints[course.request.id].is_last:
            left = int(self._run.output_tokens[course.place]) - len(course.token_s)
            done = [n for n, _ in stint[: len(stint) - left + 1]]
            return max(0, course.needed - sum(done)) if left > 0 else 0
        course.guessed = True
        return inferred_hit([n for n, _ in stint], course.needed, self._block)

    def _displaced(self, now_s: float) -> int:
        """Requests that wait to start again."""
        return sum(
            not c.running
            and c.first_scheduled_s == c.first_scheduled_s
            and len(c.token_s) < c.wanted
            and not c.end_s <= now_s
            for c in self.courses.values()
        )

    def _preempted(self, record: StepRecord, request_id: str) -> None:
        course = self._running.get(request_id)
        if course is None:
            self._fault("I3", record, request_id, "is preempted and does not run")
            return
        course.preemptions += 1
        self._left(course)

    def _left(self, course: Course) -> None:
        course.running = False
        course.computed = 0
        self._running.pop(course.request.id, None)

    def _fault(self, invariant: str, record: StepRecord, request_id: str, text: str) -> None:
        self.faults.append((invariant, f"step {record.index}: {request_id!r} {text}"))


def _course(run: Run, place: int, r: WorkloadRequest) -> Course:
    return Course(
        request=r,
        place=place,
        arrival_s=r.arrival_s,
        ready_s=max(r.arrival_s, r.ready_at_s),
        state=END_STATES.get(int(run.status[place]), f"status {int(run.status[place])}"),
        end_s=float(run.finished_s[place]),
        wanted=min(r.output_tokens, r.max_tokens),
    )
