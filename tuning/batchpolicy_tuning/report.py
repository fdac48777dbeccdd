"""Results as a document and as words, independent of where they are shown."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from batchpolicy.errors import ConfigError
from batchpolicy.quantities import format_seconds
from batchpolicy_tuning.ab import AtLoad, Results
from batchpolicy_tuning.metrics import Metric
from batchpolicy_tuning.statistics import CONFIDENCE, FEWEST_PAIRS, Comparison, Verdict

ALL = "all requests"


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one class that a policy changed."""

    scope: str
    metric: Metric
    comparison: Comparison

    def __str__(self) -> str:
        c = self.comparison
        values = f"{in_unit(c.baseline, self.metric)} to {in_unit(c.policy, self.metric)}"
        return f"{self.metric.label} {in_words(c, self.metric)} ({values})"


def changes(results: Results, at: AtLoad, arm: int) -> list[Change]:
    """What the arm made better or worse than the baseline, class by class.

    Times are told by class alone where there are classes: over all requests they
    mix what one class gained with what another lost.
    """
    found: list[Change] = []
    scopes = results.scopes()
    for scope in scopes:
        for metric in results.metrics(scope):
            if scope is None and len(scopes) > 1 and metric.unit == "seconds":
                continue
            comparison = at.against_baseline(arm, scope, metric)
            if comparison.verdict in (Verdict.BETTER, Verdict.WORSE):
                found.append(Change(scope_name(scope), metric, comparison))
    return found


def scope_name(scope: str | None) -> str:
    """A class, or all requests."""
    return ALL if scope is None else scope or "without class"


def in_unit(value: float, metric: Metric) -> str:
    """A value of the metric for people."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "no end"
    match metric.unit:
        case "seconds":
            # Rounded before it chooses its unit: 0.9999996 ms is 1 ms.
            return format_seconds(value) if value else "0 s"
        case "share":
            return f"{100.0 * value:.1f}%"
        case "index":
            return f"{value:.3f}"
        case "count" | "tokens" | "tokens/s":
            if abs(value) >= 100_000:
                return f"{value / 1000:,.0f}k"
            return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def relative(comparison: Comparison, metric: Metric) -> bool:
    """Whether an improvement is told in percent of the baseline; else in the metric's unit."""
    return metric.unit not in ("share", "index") and not math.isnan(comparison.scale)


def in_words(comparison: Comparison, metric: Metric) -> str:
    """How the policy differs from the baseline: ``38% lower``, ``4.1 times``."""
    c = comparison
    higher = (c.improvement > 0.0) == metric.higher_is_better
    if higher and relative(c, metric) and c.policy >= 2.0 * c.scale:
        return f"{c.policy / c.baseline:.1f} times"
    size = amount(abs(c.improvement), c, metric)
    if metric.unit == "share":
        size += " points"
    return f"{size} {'higher' if higher else 'lower'}"


def amount(gain: float, comparison: Comparison, metric: Metric) -> str:
    """A gain in percent of the baseline, in points of a share, or in the metric's unit."""
    if relative(comparison, metric):
        return f"{_rounded(100.0 * gain / comparison.scale)}%"
    if metric.unit == "share":
        return f"{100.0 * gain + 0.0:.1f}"
    return in_unit(gain, metric)


def _rounded(percent: float) -> str:
    text = f"{percent:.0f}" if abs(percent) >= 9.95 else f"{percent:.1f}"
    return "0.0" if text == "-0.0" else text


def document(results: Results) -> dict[str, Any]:
    """Everything that is shown, and what each replication gave, ready for JSON.

    Values are in seconds, tokens, or parts of 1; null stands for no value, the
    string ``"inf"`` for one without end.
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
            "notes": list(plan.source.notes),
        },
        "seed": plan.seed,
        "pairs": plan.pairs,
        "confidence": CONFIDENCE,
        "fewest_pairs": FEWEST_PAIRS,
        "limits": asdict(plan.limits),
        "profile": plan.profile.model_dump(mode="json"),
        "profile_extended": results.extended,
        "saturation_requests_per_s": results.saturation,
        "policies": [
            {"label": arm.label, "named": arm.text, "config": arm.config.model_dump(mode="json")}
            for arm in plan.arms
        ],
        "baseline": plan.arms[0].label,
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
        "policies": [
            {
                "label": arm.label,
                "queued": any(run.peak_waiting > 0 for run in at.runs[i]),
                "scopes": [_scope(results, at, i, scope) for scope in results.scopes()],
                "changes": [
                    {
                        "scope": change.scope,
                        "metric": change.metric.key,
                        "verdict": change.comparison.verdict.value,
                        "text": str(change),
                    }
                    for change in (changes(results, at, i) if i else [])
                ],
                "runs": [
                    {
                        "replication": k,
                        "sha256": run.digest,
                        "steps": run.steps,
                        "end_s": run.end_s,
                        "peak_waiting": run.peak_waiting,
                        "counters": dict(run.counters),
                        "wall_s": run.wall_s,
                    }
                    for k, run in enumerate(at.runs[i])
                ],
            }
            for i, arm in enumerate(results.plan.arms)
        ],
    }


def _scope(results: Results, at: AtLoad, arm: int, scope: str | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for metric in results.metrics(scope):
        values = at.values(arm, scope, metric)
        c = at.against_baseline(arm, scope, metric)
        metrics[metric.key] = {
            "unit": metric.unit,
            "higher_is_better": metric.higher_is_better,
            "mean": c.policy,
            "values": values,
        }
        if arm:
            metrics[metric.key]["against_baseline"] = {
                "baseline": c.baseline,
                "improvement": c.improvement,
                "interval": [c.low, c.high],
                "relative_improvement": c.improvement / c.scale,
                "relative_interval": [c.low / c.scale, c.high / c.scale],
                "pairs": c.pairs,
                "verdict": c.verdict.value,
                "reason": c.reason,
            }
    return {"class": scope, "metrics": metrics}


def _finite(value: object) -> Any:
    """The value with NaN and inf as JSON knows them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_finite(one) for one in cast("list[object]", value)]
    return value


def check_writable(path: Path) -> None:
    """Refuse a place where the document could not be written, before any work.

    Raises
    ------
    ConfigError
        When it is a folder, or its folder is missing or read-only.
    """
    folder = path.resolve().parent
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is no ordinary file, which could be replaced in one go.")
    if not folder.is_dir():
        raise ConfigError(f"{path}: no folder {str(folder)!r}; make it first.")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{path}: no permission to write into {str(folder)!r}.")


def write_document(results: Results, path: Path) -> None:
    """Write the document in one go: the file is whole, or as it was before."""
    text = json.dumps(document(results), indent=1, allow_nan=False) + "\n"
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp lets nobody else read; a report is like any other file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
