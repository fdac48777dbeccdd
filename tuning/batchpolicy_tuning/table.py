"""Results as tables and sentences, without the means to draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from batchpolicy_tuning.ab import AtLoad, Results
from batchpolicy_tuning.gates import Outcome, judge
from batchpolicy_tuning.measured import UNMEASURED
from batchpolicy_tuning.metrics import Metric
from batchpolicy_tuning.queue_course import QueueCourse
from batchpolicy_tuning.report import ALL, amount, changes, in_unit, interval, scope_name
from batchpolicy_tuning.statistics import CONFIDENCE, FEWEST_PAIRS, Comparison, Verdict

LABEL_WIDTH = 16
VALUE_WIDTH = 8
GAIN_WIDTH = 26
GAP = 2

Mood = Literal["", "better", "worse", "dim", "bold"]


class Cell(NamedTuple):
    """Text, and how it is meant."""

    text: str
    mood: Mood = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Rows about one class, or about all requests."""

    name: str
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table that fits the width."""

    headers: Sequence[str]
    sections: Sequence[Section]


def title(results: Results, at: AtLoad) -> str:
    """What the tables of one load are about."""
    return (
        f"{results.plan.source.name} at load {at.load:g}: {at.rate:.2f} requests/s of the "
        f"{results.saturation:.2f} that fcfs sustains; {results.plan.pairs} replications"
    )


def legend(results: Results) -> str:
    """How to read the tables."""
    return (
        f"Means over replications; gain against {results.plan.arms[0].label}, positive is better, "
        f"{CONFIDENCE:.0%} interval; same: shown to be within {results.plan.margin * 100.0:g}%; "
        "no verdict: not shown."
    )


def sheets(results: Results, at: AtLoad, width: int) -> list[Sheet]:
    """Tables for one load: the baseline, beside as many policies as the width holds."""
    room = width - LABEL_WIDTH - GAP - VALUE_WIDTH
    per_sheet = max(room // (VALUE_WIDTH + GAIN_WIDTH + 2 * GAP), 1)
    others = range(1, len(results.plan.arms))
    parts = [others[i : i + per_sheet] for i in range(0, len(others), per_sheet)]
    return [_sheet(results, at, part) for part in parts]


def summary(results: Results, at: AtLoad, arm: int) -> list[Cell]:
    """Who gains and who pays under a policy, a line for each class and direction."""
    label, baseline = results.plan.arms[arm].label, results.plan.arms[0].label
    lines = [Cell(f"{label} against {baseline}: who gains, who pays", "bold")]
    if not at.queued(arm):
        return [*lines, Cell("  nothing to schedule: no request ever waited at this load", "dim")]
    found = changes(results, at, arm)
    moods: dict[Verdict, Mood] = {Verdict.BETTER: "better", Verdict.WORSE: "worse"}
    for scope in map(scope_name, results.scopes()):
        of_scope = [change for change in found if change.scope == scope]
        for verdict, mood in moods.items():
            told = [str(change) for change in of_scope if change.comparison.verdict == verdict]
            if told:
                lines.append(Cell(f"  {verdict} for {scope}: {', '.join(told)}", mood))
        if not of_scope:
            # Times over all requests are told by class, where there are classes.
            but = " beside times" if scope == ALL and len(results.scopes()) > 1 else ""
            lines.append(Cell(f"  no difference shown for {scope}{but}", "dim"))
    return lines


def gate_lines(results: Results, at: AtLoad, arm: int) -> list[Cell]:
    """What became of the gates under a policy."""
    label = results.plan.arms[arm].label
    return [
        Cell(f"{label}, {judged}", "better" if judged.outcome is Outcome.PASSED else "worse")
        for judged in judge(results, at, arm)
    ]


def warnings(results: Results, at: AtLoad) -> list[str]:
    """Policies that failed inside runs which went on without them."""
    found: list[str] = []
    for arm, runs in zip(results.plan.arms, at.runs, strict=True):
        unpredicted = sum(run.predictor_faults for run in runs)
        faults = sum(run.faults for run in runs) - unpredicted
        if faults:
            found.append(
                f"warning: {arm.label} failed {faults:,} times; requests were then served in "
                "order of arrival, and its figures show that"
            )
        if unpredicted:
            found.append(
                f"warning: the predictor of {arm.label} failed {unpredicted:,} times; requests "
                "then went without a prediction, and the figures show that"
            )
    return found


def queues(results: Results, at: AtLoad) -> list[str]:
    """Whether the engine kept up under each policy."""
    told: list[str] = []
    for arm, runs in zip(results.plan.arms, at.runs, strict=True):
        queue = QueueCourse.mean([run.queue for run in runs])
        told.append(
            f"{arm.label} {queue.state}: somebody waits for {queue.busy_share:.0%} of the time, "
            f"without a break at the end in {queue.unbroken_share:.0%} of replications; the "
            f"queue drains in {queue.drain_share:.0%} of the time of the arrivals"
        )
    return told


def scheduler_cost(results: Results) -> str:
    """Thread time in the engine's scheduler per step, beside that of the first policy."""
    arms = len(results.plan.arms)
    runs = [[run for at in results.loads for run in at.runs[arm]] for arm in range(arms)]
    step_us = [
        1e6 * sum(run.scheduler_s for run in own) / sum(run.steps for run in own) for own in runs
    ]
    if not all(map(math.isfinite, step_us)):
        return ""
    told = ", ".join(
        f"{arm.label} {cost:.0f} us ({cost / step_us[0]:.2f}x)"
        for arm, cost in zip(results.plan.arms, step_us, strict=True)
    )
    return f"Time of this machine in the scheduler, per step: {told}."


def notes(results: Results) -> list[str]:
    """What a reader should know before believing the numbers."""
    plan = results.plan
    most = plan.limits.max_loras
    loras = "" if most is None else f"{most} LoRA adapter{'s' if most > 1 else ''} at once, "
    found = [
        *plan.source.notes,
        *([f"Without a prefix cache, which {plan.cacheless} has not."] if plan.cacheless else []),
        f"Replayed on {results.engine_version} under a virtual clock"
        f"{', asynchronous scheduling' if plan.limits.async_scheduling else ''}, "
        f"{plan.limits.max_num_seqs} "
        f"seats, {plan.limits.max_num_batched_tokens:,} tokens a step, "
        f"{plan.limits.kv_blocks * plan.limits.kv_block_tokens:,} tokens of KV, "
        f"{loras}seed {plan.seed}; "
        f"{results.wall_s:.0f} s on {plan.processes} processes.",
        f"Step times: {plan.profile.name}, {plan.profile.trust}"
        + (
            ", extended: some contexts are longer than those measured."
            if results.extended
            else "."
        ),
        f"The first and last {UNMEASURED:.0%} of each replication's requests are served and not "
        "measured; all others count, however they ended.",
        "A simulated gain under 10% proves nothing about a server; one interval in twenty misses.",
    ]
    cost = scheduler_cost(results)
    if cost:
        found.append(cost)
    if plan.pairs < FEWEST_PAIRS:
        found.append(f"With {plan.pairs} pairs there are no verdicts; {FEWEST_PAIRS} are needed.")
    return found


def _sheet(results: Results, at: AtLoad, others: Sequence[int]) -> Sheet:
    arms = results.plan.arms
    headers = ["", arms[0].label]
    for i in others:
        headers += [arms[i].label, "gain"]
    sections = [
        Section(heading(results, scope), _rows(results, at, others, scope))
        for scope in results.scopes()
    ]
    return Sheet(headers, sections)


def heading(results: Results, scope: str | None) -> str:
    """What stands over the rows of a scope."""
    if scope is None:
        return f"{scope_name(scope)} ({results.requests:,})"
    part = results.classes[scope] / results.requests
    return f"{scope_name(scope)} ({part:.0%} of requests)"


def _rows(
    results: Results, at: AtLoad, others: Sequence[int], scope: str | None
) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for metric in shown_metrics(results, at, scope):
        base = at.against_baseline(0, scope, metric)
        row = [Cell(metric.label), Cell(in_unit(base.baseline, metric))]
        for i in others:
            c = at.against_baseline(i, scope, metric)
            row += [Cell(in_unit(c.policy, metric)), gain_cell(c, metric)]
        rows.append(row)
    return rows


def shown_metrics(results: Results, at: AtLoad, scope: str | None) -> list[Metric]:
    """Metrics that have a row; a class leaves out those in which no policy has anything to say."""
    metrics = results.metrics(scope)
    return [m for m in metrics if scope is None or not _silent(results, at, scope, m)]


def _silent(results: Results, at: AtLoad, scope: str, metric: Metric) -> bool:
    """Whether a class has nothing to say here: no targets, no preemption under any policy."""
    return all(
        math.isnan(value) or (value == 0.0 and metric.unit in ("count", "tokens"))
        for arm in range(len(results.plan.arms))
        for value in at.values(arm, scope, metric)
    )


def gain_cell(c: Comparison, metric: Metric) -> Cell:
    """An improvement with its interval and verdict, or why there is none."""
    if c.reason:
        text = c.reason
    elif c.low == c.high == 0.0:
        return Cell("equal", "dim")
    else:
        sign = "+" if c.improvement > 0.0 else ""
        text = f"{sign}{amount(c.improvement, c, metric)} {interval(c, metric)}"
    match c.verdict:
        case Verdict.BETTER:
            return Cell(f"{text} better", "better")
        case Verdict.WORSE:
            return Cell(f"{text} worse", "worse")
        case Verdict.EQUIVALENT:
            return Cell(f"{text} same", "dim")
        case _:
            return Cell(text, "dim")
