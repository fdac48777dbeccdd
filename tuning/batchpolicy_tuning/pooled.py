"""Requests of many runs taken together: distributions and tenants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchpolicy.engine import Run
from batchpolicy.requests import BoolArray, FloatArray, IntArray
from batchpolicy_tuning.fairness import Demand, demand
from batchpolicy_tuning.measured import measured_rows
from batchpolicy_tuning.metrics import RequestColumns, percentile

GRID = (*(k / 100 for k in range(100)), *(k / 1000 for k in range(991, 1001)))
"""Parts of the requests at which a distribution is kept: each percent, at the end each 0.1%."""


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What is kept of each request of a run that is measured; columns of shape ``(n,)``.

    Times as in ``metrics.measure``: inf for what never came, NaN for what does not count.
    """

    class_names: tuple[str, ...]
    class_row: IntArray
    tenant_names: tuple[str, ...]
    tenant_row: IntArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    e2el_s: FloatArray
    targeted: BoolArray
    met: BoolArray
    demand: Demand
    """By tenant, in the order of ``tenant_names``."""

    @classmethod
    def of(cls, run: Run) -> Facts:
        """The facts of a run."""
        rows = measured_rows(len(run.workload.requests))
        requests = run.workload.requests[rows]
        classes = sorted({r.request_class for r in requests})
        asked = demand(run)
        columns = RequestColumns.of(run)
        return cls(
            class_names=tuple(classes),
            class_row=np.array([classes.index(r.request_class) for r in requests]),
            tenant_names=asked.tenants,
            tenant_row=asked.tenant_row[rows],
            ttft_s=columns.ttft_s[rows],
            tpot_s=columns.tpot_s[rows],
            e2el_s=columns.e2el_s[rows],
            targeted=columns.targeted[rows],
            met=columns.met[rows],
            demand=asked,
        )

    def in_class(self, name: str | None) -> BoolArray:
        """Which requests are of a class; all for None."""
        if name is None:
            return np.ones(len(self.class_row), dtype=np.bool_)
        here = self.class_names.index(name) if name in self.class_names else -1
        rows: BoolArray = self.class_row == here
        return rows


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of many requests."""

    requests: int
    """With a value, one without end included."""
    endless: int
    quantiles: tuple[float, ...]
    """At ``GRID``; inf where it falls among those without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant under one policy."""

    name: str
    requests: int
    demand_share: float
    """Its part of the work that arrived: prompt tokens and twice the output tokens."""
    service_share: float
    """Its part of the work that was started while tenants competed; NaN if they never did."""
    attainment: float
    """Part of its requests with targets that met them; NaN without targets."""
    ttft_p50_s: float
    ttft_p99_s: float


def distribution(values: FloatArray) -> Distribution:
    """The distribution of the values that are not NaN."""
    known = np.sort(values[~np.isnan(values)])
    n = len(known)
    if not n:
        return Distribution(0, 0, ())
    at = (n - 1) * np.array(GRID)
    below, above = known[np.floor(at).astype(np.int64)], known[np.ceil(at).astype(np.int64)]
    with np.errstate(invalid="ignore"):
        between = below + (above - below) * (at - np.floor(at))
    quantiles = np.where(below == above, below, between)
    return Distribution(n, int(np.isinf(known).sum()), tuple(quantiles.tolist()))


def pooled(runs: Sequence[Facts], scope: str | None) -> dict[str, Distribution]:
    """Distributions of TTFT, TPOT and E2E over the requests of all runs, by metric."""
    rows = [facts.in_class(scope) for facts in runs]

    def joined(name: str) -> FloatArray:
        return np.concatenate(
            [getattr(facts, name)[of] for facts, of in zip(runs, rows, strict=True)]
        )

    return {key: distribution(joined(f"{key}_s")) for key in ("ttft", "tpot", "e2el")}


def tenants(runs: Sequence[Facts]) -> list[Tenant]:
    """Each tenant over all runs, the one that asked for most first."""
    arrived, started = _shares(runs, "arrived"), _shares(runs, "started")
    found: list[Tenant] = []
    for name in sorted(arrived, key=lambda name: (-arrived[name], name)):
        rows = [
            facts.tenant_row
            == (facts.tenant_names.index(name) if name in facts.tenant_names else -1)
            for facts in runs
        ]
        ttft_s = np.concatenate([f.ttft_s[of] for f, of in zip(runs, rows, strict=True)])
        met = np.concatenate([f.met[of & f.targeted] for f, of in zip(runs, rows, strict=True)])
        found.append(
            Tenant(
                name=name,
                requests=sum(int(of.sum()) for of in rows),
                demand_share=arrived[name],
                service_share=started[name],
                attainment=float(met.mean()) if len(met) else math.nan,
                ttft_p50_s=percentile(ttft_s, 50),
                ttft_p99_s=percentile(ttft_s, 99),
            )
        )
    return found


def _shares(runs: Sequence[Facts], name: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for facts in runs:
        for tenant, work in zip(facts.tenant_names, getattr(facts.demand, name), strict=True):
            sums[tenant] = sums.get(tenant, 0.0) + float(work)
    total = sum(sums.values())
    return {tenant: work / total if total else math.nan for tenant, work in sums.items()}
