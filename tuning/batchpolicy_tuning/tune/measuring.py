"""What targets and objectives name, measured over one or several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchpolicy.engine import Run
from batchpolicy.metrics import METRICS, Measure
from batchpolicy.requests import BoolArray, FloatArray, Status
from batchpolicy.targets import Measurand
from batchpolicy_tuning.fairness import service_gap, tenant_fairness
from batchpolicy_tuning.measured import measured_rows
from batchpolicy_tuning.metrics import RequestColumns, percentile

_TOKENS_PRICED = 1e6
_OVER_ALL = ("throughput", "jain", "service_gap", "recompute", "cost")
"""Metrics of a whole run, which no class or tenant has by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What is kept of a run; columns hold what is measured, see ``measured_rows``."""

    class_names: npt.NDArray[np.str_]
    tenant_names: npt.NDArray[np.str_]
    ttft_s: FloatArray
    tpot_s: FloatArray
    itl_s: FloatArray
    """The longest gap of each request."""
    e2el_s: FloatArray
    queue_s: FloatArray
    waited_s: FloatArray
    """As ``queue_s``, to the end of the run for who never started."""
    targeted: BoolArray
    met: BoolArray
    preemptions: FloatArray
    arrivals_s: float
    """Time over which the measured requests arrived."""
    output_tokens: float
    span_s: float
    recompute: float
    jain: float
    service_gap: float
    requests: int
    unfinished: int
    faults: int
    peak_waiting: int
    steps: int
    digest: str

    @classmethod
    def of(cls, run: Run, *, fairness: bool = True) -> Sample:
        """The sample of a run; without ``fairness`` what compares tenants is left out."""
        n = len(run.workload.requests)
        rows = measured_rows(n)
        columns = RequestColumns.of(run)
        requests = run.workload.requests[rows]
        left = np.isin(run.status, (int(Status.WAITING), int(Status.RUNNING)))
        return cls(
            class_names=np.array([r.request_class for r in requests]),
            tenant_names=np.array([r.tenant for r in requests]),
            ttft_s=columns.ttft_s[rows],
            tpot_s=columns.tpot_s[rows],
            itl_s=run.longest_gap_s[rows],
            e2el_s=columns.e2el_s[rows],
            queue_s=columns.queue_s[rows],
            waited_s=columns.waited_s[rows],
            targeted=columns.targeted[rows],
            met=columns.met[rows],
            preemptions=columns.preemptions[rows],
            arrivals_s=requests[-1].arrival_s - requests[0].arrival_s,
            output_tokens=float(run.output_tokens.sum()),
            span_s=columns.span_s,
            recompute=float(run.recomputed_tokens[rows].sum()),
            jain=tenant_fairness(run) if fairness else math.nan,
            service_gap=service_gap(run) if fairness else math.nan,
            requests=n,
            unfinished=int(left.sum()),
            faults=sum(c for name, c in run.counters.items() if name.endswith("_faults")),
            peak_waiting=run.peak_waiting,
            steps=run.steps,
            digest=run.digest(),
        )

    def rows(self, measurand: Measurand) -> BoolArray:
        """Which of the requests a measurand is about."""
        match measurand.scope_kind:
            case "class":
                found: BoolArray = self.class_names == measurand.scope_name
            case "tenant":
                found = self.tenant_names == measurand.scope_name
            case None:
                found = np.ones(len(self.met), dtype=np.bool_)
        return found


def cannot_measure(measurand: Measurand, priced: bool) -> str:
    """Why a replay says nothing of it; empty where it does."""
    if measurand.metric == "itl" and measurand.statistic != "max":
        return (
            f"{measurand.metric}.{measurand.statistic} is not measured in a replay; itl.max, the "
            "longest gap, and tpot, the mean of a request's gaps, are"
        )
    if measurand.scope_kind and measurand.metric in _OVER_ALL:
        return f"{measurand.metric} is taken over all requests only, leave @... out"
    if measurand.metric == "cost" and not priced:
        return "cost needs price_per_hour"
    return ""


def value_of(
    measurand: Measurand, samples: Sequence[Sample], price_per_hour: float | None
) -> float:
    """The value over several runs taken together; NaN where there is nothing to measure.

    Times are pooled: a percentile is that of the requests of all runs. What never came took
    for ever, so that a percentile may be infinite. ``goodput`` is the requests that met
    their targets per second over which requests arrived; ``throughput`` output tokens per
    second of the runs. ``jain``, ``preemptions`` and ``recompute`` are means over runs,
    ``service_gap`` is the largest.
    """
    metric = measurand.metric
    if METRICS[metric].measure is Measure.SECONDS:
        return _statistic(measurand, samples)
    match metric:
        case "goodput":
            good = sum(int((s.met & s.targeted)[s.rows(measurand)].sum()) for s in samples)
            targeted = sum(int(s.targeted[s.rows(measurand)].sum()) for s in samples)
            arrivals_s = sum(s.arrivals_s for s in samples)
            return good / arrivals_s if targeted and arrivals_s > 0.0 else math.nan
        case "attainment":
            met = [s.met[s.rows(measurand) & s.targeted] for s in samples]
            joined = np.concatenate(met)
            return float(joined.mean()) if len(joined) else math.nan
        case "throughput":
            return _throughput(samples)
        case "cost":
            rate = _throughput(samples)
            if price_per_hour is None or not rate > 0.0:
                return math.nan
            return price_per_hour / 3600.0 / rate * _TOKENS_PRICED
        case "preemptions":
            return float(np.mean([s.preemptions[s.rows(measurand)].sum() for s in samples]))
        case "recompute":
            return float(np.mean([s.recompute for s in samples]))
        case "jain":
            known = [s.jain for s in samples if not math.isnan(s.jain)]
            return float(np.mean(known)) if known else math.nan
        case _:
            known = [s.service_gap for s in samples if not math.isnan(s.service_gap)]
            return max(known, default=math.nan)


def _throughput(samples: Sequence[Sample]) -> float:
    span_s = sum(s.span_s for s in samples)
    return sum(s.output_tokens for s in samples) / span_s if span_s > 0.0 else math.nan


def _statistic(measurand: Measurand, samples: Sequence[Sample]) -> float:
    name = f"{measurand.metric}_s"
    if measurand.metric == "queue" and measurand.statistic == "max":
        name = "waited_s"
    values: FloatArray = np.concatenate([getattr(s, name)[s.rows(measurand)] for s in samples])
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan
    if measurand.statistic == "mean":
        return float(values.mean())
    quantile = measurand.quantile
    assert quantile is not None, "every other statistic is a quantile"
    return percentile(values, 100.0 * quantile)
