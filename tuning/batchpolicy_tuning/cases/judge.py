"""One case on one engine under one policy, from replay to outcome."""

from __future__ import annotations

from functools import cached_property

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, StepRecord
from batchpolicy.errors import BatchPolicyError, StepLimitReached
from batchpolicy_tuning.cases import costs, invariants
from batchpolicy_tuning.cases.check_specs import Check, Later
from batchpolicy_tuning.cases.checks import JUDGES
from batchpolicy_tuning.cases.judging import Evidence
from batchpolicy_tuning.cases.needs import missing
from batchpolicy_tuning.cases.outcome import Failure, Outcome, Verdict
from batchpolicy_tuning.cases.schema import Case, Same, Variant
from batchpolicy_tuning.cases.setting import Setting, setting_of
from batchpolicy_tuning.cases.trace import TOLERANCE_S, Trace, trace_of

MAX_STEPS = 100_000
"""Steps after which a run counts as endless."""
_FAULTS = ("policy_faults", "adapter_faults")


def judge(case: Case, config: PolicyConfig, engine: Engine) -> Outcome:
    """Run a case and say how it ended; an engine or policy that fails, fails the case."""
    if case.kind == "tuning":
        return _tuned(case)
    if case.kind != "workload":
        return _not_applicable(case, (f"kind {case.kind} is not runnable yet",))
    later = [check.kind for check in case.checks if isinstance(check, Later)]
    if later:
        return _not_applicable(case, (f"check {later[0]} is not runnable yet",))
    setting = setting_of(case, config)
    lacking = missing(case, setting, engine)
    if lacking:
        return _not_applicable(case, tuple(lacking), setting.notes)
    runs = Runs(engine, setting)
    try:
        failures = [
            *_checked(case.checks, runs.evidence),
            *_kept(case, runs),
            *_served_by_policy(runs.first),
            *(f for one in case.variants for f in _varied(case, one, config, engine, runs.first)),
        ]
    except StepLimitReached:
        failures = [Failure("I5", "an end", f"none in {MAX_STEPS:,} steps")]
    except BatchPolicyError as e:
        failures = [_no_run(e)]
    except Exception as e:
        # One fault in an engine or policy must not hide how the other cases end.
        failures = [_no_run(f"{type(e).__name__}: {e}")]
    return Outcome(
        case.id,
        case.title,
        Verdict.FAILED if failures else Verdict.PASSED,
        tuple(failures),
        notes=setting.notes,
    )


def _tuned(case: Case) -> Outcome:
    """A case of the tuner, which needs neither engine nor policy: a table stands for both."""
    try:
        from batchpolicy_tuning.cases.tuning_case import failures_of
    except ModuleNotFoundError as missing:
        return _not_applicable(case, (f"tuner (needs {missing.name}, which is not installed)",))
    failures = tuple(failures_of(case))
    verdict = Verdict.FAILED if failures else Verdict.PASSED
    return Outcome(case.id, case.title, verdict, failures)


class Runs:
    """Runs of one setting, each made when it is asked for."""

    def __init__(self, engine: Engine, setting: Setting) -> None:
        self._engine = engine
        self.setting = setting
        self.digest = setting.workload.digest()

    def run(self) -> Trace:
        """A new run, traced."""
        records: list[StepRecord] = []
        s = self.setting
        run = self._engine.replay(
            s.workload, s.config, s.limits, s.clock, max_steps=MAX_STEPS, observer=records.append
        )
        return trace_of(run, records, s.limits)

    @cached_property
    def first(self) -> Trace:
        """The run that is judged."""
        return self.run()

    @cached_property
    def second(self) -> Trace:
        """The run that it is compared with."""
        return self.run()

    @cached_property
    def evidence(self) -> Evidence:
        """What checks go by."""
        return Evidence(
            setting=self.setting,
            trace=self.first,
            again=lambda: self.second,
            seconds_per_decision=lambda queue: costs.seconds_per_decision(
                self._engine, self.setting, queue
            ),
            policy_cpu_s=lambda: costs.policy_cpu_s(self._engine, self.setting),
        )


def _no_run(said: object) -> Failure:
    text = " ".join(str(said).split())
    return Failure("run", "a run", text)


def _not_applicable(case: Case, lacking: tuple[str, ...], notes: tuple[str, ...] = ()) -> Outcome:
    return Outcome(case.id, case.title, Verdict.NOT_APPLICABLE, lacking=lacking, notes=notes)


def _served_by_policy(trace: Trace) -> list[Failure]:
    """After a fault the engine serves in arrival order, and the policy shows nothing."""
    counters = trace.run.counters
    counted = [f"{counters[name]} {name}" for name in _FAULTS if counters.get(name)]
    return [Failure("run", "a run without faults", ", ".join(counted))] if counted else []


def _checked(checks: tuple[Check, ...], evidence: Evidence) -> list[Failure]:
    found = (JUDGES[check.kind](check, evidence) for check in checks)
    return [failure for failure in found if failure is not None]


def _kept(case: Case, runs: Runs) -> list[Failure]:
    """What violates an invariant that the case does not suspend."""
    found: list[Failure] = []
    for name, (expected, rule) in invariants.INVARIANTS.items():
        if name not in case.exempt_invariants:
            found += invariants.failures(name, expected, rule(runs.first))
    if "I7" not in case.exempt_invariants:
        twice = invariants.same_twice(runs.first, runs.second)
        found += invariants.failures("I7", "the same schedule twice", twice)
    if "I8" not in case.exempt_invariants:
        kept = invariants.facts_kept(runs.setting.workload, runs.digest, runs.first.run)
        found += invariants.failures("I8", "the facts of requests as they were", kept)
    return found


def _varied(
    case: Case, variant: Variant, config: PolicyConfig, engine: Engine, base: Trace
) -> list[Failure]:
    """What must not differ under a variant, and does; and the invariants there."""
    runs = Runs(engine, setting_of(case, config, variant))
    found = [
        Failure("variant", f"the same {same} under {variant.name!r}", text)
        for same in variant.expect_same
        if (text := _difference(same, base, runs.first))
    ]
    return found + [
        Failure(one.kind, f"{one.expected} (variant {variant.name!r})", one.found)
        for one in _kept(case, runs)
    ]


def _difference(same: Same, base: Trace, other: Trace) -> str:
    """How two runs differ; empty if they do not."""
    if same == "schedule":
        return "; ".join(invariants.same_twice(base, other))
    if same == "status":
        pairs = {i: (c.state, _state(other, i)) for i, c in base.courses.items()}
        return "; ".join(f"{i} {a} and {b}" for i, (a, b) in pairs.items() if a != b)
    one, two = _order(base), _order(other)
    at = next((k for k, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), None)
    if at is not None:
        return f"{' '.join(two[at])} in place of {' '.join(one[at])} as number {at + 1}"
    return "" if len(one) == len(two) else f"{len(two)} starts in place of {len(one)}"


def _state(trace: Trace, request_id: str) -> str:
    course = trace.courses.get(request_id)
    return "not there" if course is None else course.state


def _order(trace: Trace) -> list[list[str]]:
    """Ids by first start; those of one time together."""
    started = [c for c in trace.courses.values() if c.first_scheduled_s == c.first_scheduled_s]
    started.sort(key=lambda c: (c.first_scheduled_s, c.request.id))
    groups: list[list[str]] = []
    last_s = float("-inf")
    for c in started:
        if c.first_scheduled_s > last_s + TOLERANCE_S:
            groups.append([])
        groups[-1].append(c.request.id)
        last_s = c.first_scheduled_s
    return groups
