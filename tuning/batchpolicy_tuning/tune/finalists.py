"""The best settings of a search, run again on what it did not see, and who wins there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batchpolicy.engine import Engine
from batchpolicy.errors import BatchPolicyError
from batchpolicy.metrics import METRICS, Measure
from batchpolicy.targets import Measurand
from batchpolicy_tuning.metrics import percentile
from batchpolicy_tuning.pool import Workers
from batchpolicy_tuning.statistics import (
    CONFIDENCE,
    Comparison,
    Verdict,
    compare,
    differences,
    holm,
)
from batchpolicy_tuning.tune.judging import Goal, judge, pareto
from batchpolicy_tuning.tune.measuring import Sample, value_of
from batchpolicy_tuning.tune.problem import Instance, served, values_of
from batchpolicy_tuning.tune.records import Outcome, Part, TrialRecord, Value
from batchpolicy_tuning.tune.result import (
    ComparisonResult,
    Conclusion,
    FinalistResult,
    ScopeResult,
)
from batchpolicy_tuning.tune.settings import Setting
from batchpolicy_tuning.tune.study import Study
from batchpolicy_tuning.turned_signs import p_negative


@dataclass(frozen=True, slots=True)
class Serve:
    """One slice under a setting, as a task; the reason where it gives no result."""

    study: Study
    setting: Setting
    instance: Instance

    def __call__(self, engine: Engine, /) -> Sample | str:
        """See ``served``."""
        try:
            return served(self.study, self.setting, self.instance, engine)
        except BatchPolicyError as fault:
            return str(fault)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is to be run on what is held out."""

    trial: int
    label: str
    setting: Setting


@dataclass(frozen=True, slots=True)
class Final:
    """What the finalists came to."""

    baseline: FinalistResult
    finalists: tuple[FinalistResult, ...]
    conclusion: Conclusion
    winner: int | None
    reason: str


def ranked_for_finals(goals: Sequence[Goal], trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The feasible trials but the baseline: those of the front first, then the best first.

    Of equals, the one with fewer changes against the baseline: each is something that
    operators have to know. A policy file that is given counts as one.
    """
    base: Mapping[str, Value] = next(
        (one.setting for one in trials if one.origin == "baseline"), dict[str, Value]()
    )
    front = {one.number for one in pareto(goals, trials)} if len(goals) > 1 else set[int]()

    def rank(one: TrialRecord) -> tuple[bool, float, int, int]:
        loss = goals[0].loss(one.values)
        own = 1 if one.origin == "given" else sum(k not in base for k in one.setting)
        changes = own + sum(base[k] != one.setting.get(k) for k in base)
        return (one.number not in front, float(f"{loss:.9g}"), changes, one.number)

    feasible = [one for one in trials if one.outcome is Outcome.FEASIBLE]
    return sorted((one for one in feasible if one.origin != "baseline"), key=rank)


def run_finalists(
    study: Study,
    baseline: Chosen,
    chosen: Sequence[Chosen],
    held_out: Sequence[Instance],
    make_engine: Callable[[], Engine],
    processes: int,
    done: Callable[[], None],
) -> Final:
    """Serve what is held out under the baseline and each finalist, and judge."""
    arms = [baseline, *chosen]
    tasks = [Serve(study, arm.setting, one) for one in held_out for arm in arms]
    ended: dict[int, Sample | str] = {}
    with Workers(make_engine, max(min(processes, len(tasks)), 1)) as workers:
        for i, found in workers.each(tasks):
            ended[i] = found
            done()
    samples = [[ended[i] for i in range(a, len(tasks), len(arms))] for a in range(len(arms))]
    names = [one.name for one in held_out]
    return concluded(study, arms, samples, names)


def concluded(
    study: Study,
    arms: Sequence[Chosen],
    samples: Sequence[Sequence[Sample | str]],
    names: Sequence[str],
) -> Final:
    """What runs on held-out slices say; ``samples`` by arm, the baseline first, and slice."""
    base_runs = _whole(samples[0])
    base = _result(study, arms[0], samples[0], names, ())
    losses = [_differences(study, study.objectives[0], base_runs, _whole(s)) for s in samples[1:]]
    p_values = holm([_p_of_none(one) for one in losses])
    finalists = tuple(
        _result(study, arm, runs, names, _comparisons(study, base_runs, _whole(runs), p))
        for arm, runs, p in zip(arms[1:], samples[1:], p_values, strict=True)
    )
    conclusion, winner, reason = conclusion_of(study.goals, base, finalists)
    return Final(base, finalists, conclusion, winner, reason)


def conclusion_of(
    goals: Sequence[Goal], base: FinalistResult, finalists: Sequence[FinalistResult]
) -> tuple[Conclusion, int | None, str]:
    """What held-out results say, the trial that wins, and why.

    Whoever misses a target held out cannot win. Where the baseline misses one too, keeping
    the targets decides, and of those that keep them the first objective; else a finalist
    has to be shown to be better in that.
    """
    goal = goals[0]
    base_meets = base.outcome == Outcome.FEASIBLE
    meeting = [one for one in finalists if one.outcome == Outcome.FEASIBLE]
    if not meeting:
        if not finalists and base_meets:
            return Conclusion.KEEP_BASELINE, base.trial, "nothing else met the targets"
        why = "; ".join(f"trial {one.trial} {one.reason}" for one in finalists)
        return Conclusion.INCONCLUSIVE, None, f"no finalist meets all targets held out: {why}"
    meeting = sorted(meeting, key=lambda one: goal.loss(one.values))
    if not base_meets:
        why = f"meets all targets held out, and the baseline {base.reason}"
        return Conclusion.WINNER, meeting[0].trial, why
    better = [one for one in meeting if _is_better(one)]
    if better:
        return (
            Conclusion.WINNER,
            better[0].trial,
            "meets all targets held out and is better than the baseline",
        )
    settled = {Verdict.WORSE.value, Verdict.EQUIVALENT.value, Verdict.NOTHING_TO_SCHEDULE.value}
    if all(_verdict(one) in settled for one in meeting):
        return Conclusion.KEEP_BASELINE, base.trial, "no finalist is better than the baseline"
    return Conclusion.INCONCLUSIVE, None, f"no finalist is shown to be better in {goal.key}"


def _verdict(one: FinalistResult) -> str:
    """Of the first objective."""
    return one.comparisons[0].verdict if one.comparisons else Verdict.NOT_SHOWN.value


def _is_better(one: FinalistResult) -> bool:
    """Shown by its own interval, and by the test that knows how many were tried."""
    p = one.comparisons[0].p if one.comparisons else None
    return (
        _verdict(one) == Verdict.BETTER.value and p is not None and p <= (1.0 - CONFIDENCE) / 2.0
    )


def _whole(runs: Sequence[Sample | str]) -> list[Sample] | None:
    """The samples of an arm; None where a slice gave none."""
    found = [one for one in runs if not isinstance(one, str)]
    return found if len(found) == len(runs) else None


def _result(
    study: Study,
    arm: Chosen,
    runs: Sequence[Sample | str],
    names: Sequence[str],
    comparisons: tuple[ComparisonResult, ...],
) -> FinalistResult:
    whole = _whole(runs)
    setting = arm.setting.shown()
    if whole is None:
        reason = next(one for one in runs if isinstance(one, str))
        return FinalistResult(
            trial=arm.trial,
            label=arm.label,
            setting=setting,
            outcome=Outcome.FAILED.value,
            reason=f"fails: {reason}",
        )
    values = values_of(study, whole)
    verdict = judge(study.limits, study.goals, values)
    return FinalistResult(
        trial=arm.trial,
        label=arm.label,
        setting=setting,
        outcome=verdict.outcome.value,
        reason=f"misses {verdict.reason}" if verdict.reason else "",
        values=values,
        targets=verdict.targets,
        parts=tuple(
            Part(instance=name, values=values_of(study, [one]))
            for name, one in zip(names, whole, strict=True)
        ),
        comparisons=comparisons,
        scopes=tuple(_scopes(whole)),
    )


def _values(study: Study, objective: Measurand, runs: Sequence[Sample]) -> list[float]:
    """One number for each slice.

    Goodput counts by the time that slices take on average, the same for all arms, and not
    by each slice's own: else one that was recorded in a burst would outweigh many others.
    So the mean over slices is that of their requests together.
    """
    found = [value_of(objective, [one], study.file.price_per_hour) for one in runs]
    if objective.metric != "goodput":
        return found
    mean_s = float(np.mean([one.arrivals_s for one in runs]))
    return [v * one.arrivals_s / mean_s for v, one in zip(found, runs, strict=True)]


def _differences(
    study: Study,
    objective: Measurand,
    base: Sequence[Sample] | None,
    runs: Sequence[Sample] | None,
) -> list[float]:
    """Gains by slice; empty where an arm has none."""
    if base is None or runs is None:
        return []
    pairs = np.array([_values(study, objective, base), _values(study, objective, runs)])
    pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
    sign = -1.0 if objective.low_is_good else 1.0
    return [float(x) for x in sign * differences(pairs[0], pairs[1])]


def _p_of_none(gains: Sequence[float]) -> float:
    """How likely such gains are when there is none."""
    if len(gains) < 2 or not any(gains):
        return 1.0
    return float(p_negative(-np.array(gains)))


def _comparisons(
    study: Study, base: Sequence[Sample] | None, runs: Sequence[Sample] | None, p: float
) -> tuple[ComparisonResult, ...]:
    if base is None or runs is None:
        return ()
    queued = any(one.peak_waiting > 0 for one in (*base, *runs))
    found: list[ComparisonResult] = []
    for i, objective in enumerate(study.objectives):
        one = compare(
            _values(study, objective, base),
            _values(study, objective, runs),
            higher_is_better=not objective.low_is_good,
            in_points=METRICS[objective.metric].measure is Measure.SHARE,
            queued=queued,
        )
        found.append(_compared(str(objective), one, p if i == 0 else None))
    return tuple(found)


def _compared(objective: str, one: Comparison, p: float | None) -> ComparisonResult:
    def known(value: float) -> float | None:
        return None if math.isnan(value) else value

    return ComparisonResult(
        objective=objective,
        baseline=known(one.baseline),
        value=known(one.policy),
        improvement=known(one.improvement),
        low=known(one.low),
        high=known(one.high),
        relative_low=known(one.relative_low),
        relative_high=known(one.relative_high),
        pairs=one.pairs,
        verdict=one.verdict.value,
        p=p,
        reason=one.reason,
    )


def _scopes(runs: Sequence[Sample]) -> list[ScopeResult]:
    classes = sorted({str(name) for one in runs for name in one.class_names} - {""})
    tenants = sorted({str(name) for one in runs for name in one.tenant_names} - {""})
    wanted: list[tuple[str, str]] = [
        ("all", ""),
        *(("class", name) for name in classes),
        *(("tenant", name) for name in tenants),
    ]
    return [_scope(kind, name, runs) for kind, name in wanted]


def _scope(kind: str, name: str, runs: Sequence[Sample]) -> ScopeResult:
    rows = [
        np.ones(len(one.met), dtype=np.bool_)
        if kind == "all"
        else (one.class_names if kind == "class" else one.tenant_names) == name
        for one in runs
    ]

    def quantile(column: str, q: float) -> float | None:
        joined = np.concatenate([getattr(o, column)[r] for o, r in zip(runs, rows, strict=True)])
        found = percentile(joined, q)
        return None if math.isnan(found) else found

    met = np.concatenate([o.met[r & o.targeted] for o, r in zip(runs, rows, strict=True)])
    return ScopeResult(
        kind="all" if kind == "all" else "class" if kind == "class" else "tenant",
        name=name,
        requests=sum(int(r.sum()) for r in rows),
        attainment=float(met.mean()) if len(met) else None,
        ttft_p50_s=quantile("ttft_s", 50),
        ttft_p99_s=quantile("ttft_s", 99),
        tpot_p99_s=quantile("tpot_s", 99),
        longest_wait_s=max(
            float(o.waited_s[r].max(initial=0.0)) for o, r in zip(runs, rows, strict=True)
        ),
    )
