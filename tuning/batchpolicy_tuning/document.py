"""A comparison as a document: what the JSON file holds and the HTML page draws."""

from __future__ import annotations

import math
import os
import platform
import sys
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, cast

from batchpolicy_tuning import gates, pooled, table
from batchpolicy_tuning.ab import AtLoad, Results
from batchpolicy_tuning.measured import UNMEASURED
from batchpolicy_tuning.queue_course import QueueCourse
from batchpolicy_tuning.report import changes, in_unit, scope_name
from batchpolicy_tuning.statistics import CONFIDENCE, FEWEST_PAIRS
from batchpolicy_tuning.timeline import recorded


def document(results: Results) -> dict[str, Any]:
    """Everything that is shown, and what each replication gave, ready for JSON.

    Values are in seconds, tokens, or parts of 1; null stands for no value, the
    string ``"inf"`` for one without end. What is called ``text`` stands on the
    terminal and the page in these words.
    """
    plan = results.plan
    found: dict[str, Any] = {
        "apiVersion": "batchpolicy/v1",
        "kind": "Comparison",
        "environment": environment(results),
        "workload": {
            "name": plan.source.name,
            "sha256": results.workload_digest,
            "requests": results.requests,
            "classes": dict(results.classes),
            "targets": {name: t._asdict() for name, t in results.targets.items()},
            "notes": list(plan.source.notes),
        },
        "seed": plan.seed,
        "pairs": plan.pairs,
        "confidence": CONFIDENCE,
        "fewest_pairs": FEWEST_PAIRS,
        "margin": plan.margin,
        "unmeasured_share_at_either_end": UNMEASURED,
        "gates": [str(gate) for gate in plan.gates],
        "limits": asdict(plan.limits),
        "profile": plan.profile.model_dump(mode="json"),
        "profile_extended": results.extended,
        "saturation_requests_per_s": results.saturation,
        "policies": [
            {"label": arm.label, "named": arm.text, "config": arm.config.model_dump(mode="json")}
            for arm in plan.arms
        ],
        "baseline": plan.arms[0].label,
        "legend": table.legend(results),
        "notes": table.notes(results),
        "distribution_grid": list(pooled.GRID),
        "loads": [_load(results, at) for at in results.loads],
        "wall_s": results.wall_s,
    }
    ready: dict[str, Any] = _finite(found)
    return ready


def environment(results: Results) -> dict[str, Any]:
    """Versions and machine, as far as results may depend on them."""
    packages = ("batchpolicy", "numpy", "scipy", "pydantic")
    return {
        "engine": results.engine_version,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "processes": results.plan.processes,
        "argv": sys.argv[1:],
    }


def _load(results: Results, at: AtLoad) -> dict[str, Any]:
    return {
        "load": at.load,
        "requests_per_s": at.rate,
        "title": table.title(results, at),
        "queues": table.queues(results, at),
        "warnings": table.warnings(results, at),
        "policies": [_policy(results, at, i) for i in range(len(results.plan.arms))],
        "recorded": recorded(results, at),
    }


def _policy(results: Results, at: AtLoad, arm: int) -> dict[str, Any]:
    runs = at.runs[arm]
    facts = [run.facts for run in runs]
    queue = QueueCourse.mean([run.queue for run in runs])
    return {
        "label": results.plan.arms[arm].label,
        "queued": any(run.peak_waiting > 0 for run in runs),
        "queue": {**asdict(queue), "state": queue.state.value},
        "invalid": gates.invalid(results, at, arm),
        "gates": [_gate(one) for one in (gates.judge(results, at, arm) if arm else [])],
        "scopes": [_scope(results, at, arm, scope) for scope in results.scopes()],
        "changes": [
            {
                "scope": change.scope,
                "metric": change.metric.key,
                "verdict": change.comparison.verdict.value,
                "text": str(change),
            }
            for change in (changes(results, at, arm) if arm else [])
        ],
        "summary": [
            {"text": cell.text, "mood": cell.mood}
            for cell in (table.summary(results, at, arm) if arm else [])
        ],
        "tenants": [asdict(tenant) for tenant in pooled.tenants(facts)],
        "runs": [
            {
                "replication": k,
                "sha256": run.digest,
                "steps": run.steps,
                "end_s": run.end_s,
                "peak_waiting": run.peak_waiting,
                "ends": dict(run.ends),
                "counters": dict(run.counters),
                "wall_s": run.wall_s,
                "scheduler_s": run.scheduler_s,
            }
            for k, run in enumerate(runs)
        ],
    }


def _gate(judged: gates.Judged) -> dict[str, Any]:
    return {
        "gate": str(judged.gate),
        "outcome": judged.outcome.value,
        "change": judged.change,
        "limit": judged.limit,
        "p_adjusted": judged.p,
        "reason": judged.reason,
        "text": str(judged),
    }


def _scope(results: Results, at: AtLoad, arm: int, scope: str | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    shown = table.shown_metrics(results, at, scope)
    for metric in results.metrics(scope):
        values = at.values(arm, scope, metric)
        c = at.against_baseline(arm, scope, metric)
        metrics[metric.key] = {
            "label": metric.label,
            "unit": metric.unit,
            "higher_is_better": metric.higher_is_better,
            "shown": metric in shown,
            "mean": c.policy,
            "text": in_unit(c.policy, metric),
            "values": values,
        }
        if arm:
            gain = table.gain_cell(c, metric)
            metrics[metric.key]["against_baseline"] = {
                "baseline": c.baseline,
                "improvement": c.improvement,
                "interval": [c.low, c.high],
                "relative_improvement": c.improvement / c.scale,
                "relative_interval": [c.relative_low, c.relative_high],
                "within_margin": c.within_margin,
                "pairs": c.pairs,
                "verdict": c.verdict.value,
                "reason": c.reason,
                "text": gain.text,
                "mood": gain.mood,
            }
    together = pooled.pooled([run.facts for run in at.runs[arm]], scope)
    return {
        "class": scope,
        "name": scope_name(scope),
        "heading": table.heading(results, scope),
        "metrics": metrics,
        "distributions": {key: asdict(one) for key, one in together.items()},
    }


def _finite(value: object) -> Any:
    """The value with NaN and inf as JSON knows them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in cast("dict[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in cast("list[object]", value)]
    return value
