"""What a run did for its requests, in all and by class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from batchpolicy.engine import Run
from batchpolicy.requests import BoolArray, FloatArray, Status
from batchpolicy_tuning.fairness import tenant_fairness
from batchpolicy_tuning.measured import measured_rows

Unit = Literal["seconds", "share", "index", "count", "tokens", "tokens/s"]
Values = Mapping[str, float]
"""Numbers by metric; NaN where the metric says nothing about the run."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number by which runs are compared."""

    key: str
    label: str
    unit: Unit
    higher_is_better: bool = False
    by_class: bool = True
    """Whether it is also taken for each class by itself."""

    @property
    def in_points(self) -> bool:
        """Whether changes are told in its unit, and not in parts of the baseline."""
        return self.unit in ("share", "index")


METRICS: tuple[Metric, ...] = (
    Metric("ttft.p50", "TTFT p50", "seconds"),
    Metric("ttft.p99", "TTFT p99", "seconds"),
    Metric("tpot.p50", "TPOT p50", "seconds"),
    Metric("tpot.p99", "TPOT p99", "seconds"),
    Metric("e2el.p50", "E2E p50", "seconds"),
    Metric("e2el.p99", "E2E p99", "seconds"),
    Metric("queue.p50", "queue p50", "seconds"),
    Metric("queue.p99", "queue p99", "seconds"),
    Metric("queue.max", "longest wait", "seconds"),
    Metric("attainment", "targets met", "share", higher_is_better=True),
    Metric("jain", "Jain, tenants", "index", higher_is_better=True, by_class=False),
    Metric("preemptions", "preemptions", "count"),
    Metric("recompute", "recomputed tok", "tokens", by_class=False),
    Metric("throughput", "output tok/s", "tokens/s", higher_is_better=True, by_class=False),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The metrics of one run."""

    overall: Values
    classes: Mapping[str, Values]

    def scope(self, name: str | None) -> Values:
        """Values of a class, all NaN when it had no requests; of all requests for None."""
        return self.overall if name is None else self.classes.get(name, {})


def measure(run: Run) -> Measured:
    """All metrics of a run, over the requests that are measured; see ``measured_rows``.

    ``ttft``, ``e2el`` and ``queue`` are seconds from arrival to the first token, the
    last token and the first time scheduled. ``tpot`` is (E2E - TTFT) / (n - 1) of
    requests with n > 1 tokens. What never came took for ever: a request that failed,
    was refused, expired or is unfinished stays in every percentile as one without
    end. Only a client that cancels takes its request out of what it did not wait for.
    ``queue.max`` is the longest wait, which goes on to the end of the run for who
    never started. ``attainment`` is the share of *all* requests with targets that
    finished and met them. ``preemptions`` and ``recompute``, the tokens computed again
    after one, are sums. ``throughput`` is taken over the whole run: all output tokens,
    over the time from the first arrival to the end. For ``jain`` see
    ``tenant_fairness``.
    """
    table = RequestColumns.of(run)
    rows = measured_rows(len(run.workload.requests))
    every = np.zeros(len(run.workload.requests), dtype=np.bool_)
    every[rows] = True
    names = np.array([r.request_class for r in run.workload.requests])
    overall = {
        **table.values(every),
        "jain": tenant_fairness(run),
        "recompute": float(run.recomputed_tokens[rows].sum()),
        "throughput": float(run.output_tokens.sum()) / table.span_s,
    }
    by_class = {
        name: table.values(every & (names == name))
        for name in run.workload.classes()
        if (names[rows] == name).any()
    }
    return Measured(overall, by_class)


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """Columns of a run, one row a request; NaN where a metric leaves the request out."""

    ttft_s: FloatArray
    tpot_s: FloatArray
    e2el_s: FloatArray
    queue_s: FloatArray
    waited_s: FloatArray
    targeted: BoolArray
    met: BoolArray
    preemptions: FloatArray
    span_s: float

    @classmethod
    def of(cls, run: Run) -> RequestColumns:
        """The columns of a run."""
        requests = run.workload.requests
        arrival_s = np.array([r.arrival_s for r in requests])
        ttft_slo_s = np.array([r.ttft_slo_s for r in requests])
        tpot_slo_s = np.array([r.tpot_slo_s for r in requests])
        deadline_s = np.array([r.deadline_s for r in requests])
        finished = run.status == Status.FINISHED
        never = np.where(run.status == Status.ABORTED, np.nan, np.inf)
        output = run.output_tokens.astype(np.float64)

        def since_arrival(at_s: FloatArray, happened: BoolArray) -> FloatArray:
            return np.where(happened, at_s - arrival_s, never)

        ttft_s = since_arrival(run.first_token_s, np.isfinite(run.first_token_s))
        streamed = finished & (output > 1)
        with np.errstate(invalid="ignore"):
            gaps_s = (run.finished_s - run.first_token_s) / np.maximum(output - 1, 1)
        to_stream = np.array([min(r.output_tokens, r.max_tokens) > 1 for r in requests])
        tpot_s = np.where(streamed, gaps_s, np.where(~finished & to_stream, never, np.nan))
        scheduled = np.isfinite(run.first_scheduled_s)
        return cls(
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            e2el_s=since_arrival(run.finished_s, finished),
            queue_s=since_arrival(run.first_scheduled_s, scheduled),
            waited_s=np.where(scheduled, run.first_scheduled_s, run.end_s) - arrival_s,
            targeted=np.isfinite(ttft_slo_s) | np.isfinite(tpot_slo_s) | np.isfinite(deadline_s),
            met=finished
            & (ttft_s <= ttft_slo_s)
            & (~streamed | (tpot_s <= tpot_slo_s))
            & ~(run.finished_s > deadline_s),
            preemptions=run.preemptions.astype(np.float64),
            span_s=run.end_s - float(arrival_s[0]),
        )

    def values(self, rows: BoolArray) -> Values:
        """Metrics that are taken over some of the requests."""
        targeted = self.targeted & rows
        return {
            "ttft.p50": percentile(self.ttft_s[rows], 50),
            "ttft.p99": percentile(self.ttft_s[rows], 99),
            "tpot.p50": percentile(self.tpot_s[rows], 50),
            "tpot.p99": percentile(self.tpot_s[rows], 99),
            "e2el.p50": percentile(self.e2el_s[rows], 50),
            "e2el.p99": percentile(self.e2el_s[rows], 99),
            "queue.p50": percentile(self.queue_s[rows], 50),
            "queue.p99": percentile(self.queue_s[rows], 99),
            "queue.max": float(self.waited_s[rows].max()),
            "attainment": float(self.met[targeted].mean()) if targeted.any() else math.nan,
            "preemptions": float(self.preemptions[rows].sum()),
        }


def percentile(values: FloatArray, q: float) -> float:
    """The q-th percentile of the values that are not NaN, between neighbours in proportion.

    NaN when there is none, inf where it falls on or beside an inf: numpy's own gives
    NaN there.
    """
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return math.nan
    at = (len(known) - 1) * q / 100.0
    below, above = float(known[math.floor(at)]), float(known[math.ceil(at)])
    return below if below == above else below + (above - below) * (at - math.floor(at))
