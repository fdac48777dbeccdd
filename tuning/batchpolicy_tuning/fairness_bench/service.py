"""Who was served how much, and who waited, after each event of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from batchpolicy.engine import Run
from batchpolicy.requests import BoolArray, FloatArray, IntArray
from batchpolicy_tuning.fairness import OUTPUT_PRICE, PROMPT_PRICE
from batchpolicy_tuning.fairness_bench.deliveries import Deliveries

_BEFORE, _PREEMPTED, _ADMITTED, _DURING, _RESULTS, _PHASES = range(6)
"""Order within a step; before and during it requests arrive and end."""


@dataclass(frozen=True, slots=True, eq=False)
class ServiceCourse:
    """Service and backlog of tenants after each event, shape ``(events, tenants)``.

    Service is that of the virtual token counters: a prompt token 1 when its request is
    first admitted, an output token 2 when it is delivered, over the weight of the tenant.
    Backlog follows from arrivals, admissions, preemptions and ends one by one, in the
    order in which the engine made them. Sampled at intervals it would hide the instants at
    which a queue is empty, and with them the end of the time over which a bound holds.
    """

    tenants: tuple[str, ...]
    served: FloatArray
    backlogged: BoolArray
    """Whether the tenant has requests that wait and could start."""

    @classmethod
    def of(cls, run: Run, found: Deliveries) -> ServiceCourse:
        """The course of a run up to the last arrival: what comes later is drain."""
        names = sorted({r.tenant for r in run.workload.requests})
        events = _events(run, found, names)
        order = np.lexsort((events.place, events.moment))
        moment, place = events.moment[order], events.place[order]
        changed = (np.diff(moment, prepend=-1) != 0) | (np.diff(place, prepend=-1) != 0)
        row = np.cumsum(changed) - 1
        shape = (int(row[-1]) + 1, len(names))
        served, queued = np.zeros(shape), np.zeros(shape)
        np.add.at(served, (row, events.tenant[order]), events.served[order])
        np.add.at(queued, (row, events.tenant[order]), events.queued[order])
        return cls(tuple(names), served.cumsum(axis=0), queued.cumsum(axis=0) > 0.5)

    def pair_gap(self) -> float:
        """Largest change of the difference in service of two tenants while both wait.

        Over all pairs, and all stretches of time in which neither queue is ever empty: what
        the bound of the virtual token counters is about. 0 when no two ever wait at once.
        """
        pairs = combinations(range(len(self.tenants)), 2)
        return max((self._gap(i, j) for i, j in pairs), default=0.0)

    def cumulative_gap(self) -> float:
        """Largest difference in service since the start between two tenants, waiting or not."""
        return float(np.ptp(self.served, axis=1).max())

    def _gap(self, i: int, j: int) -> float:
        both = np.flatnonzero(self.backlogged[:, i] & self.backlogged[:, j])
        if not len(both):
            return 0.0
        lead = self.served[both, i] - self.served[both, j]
        starts = np.flatnonzero(np.diff(both, prepend=-2) > 1)
        swing = np.maximum.reduceat(lead, starts) - np.minimum.reduceat(lead, starts)
        return float(swing.max())


def bound(run: Run, kv_tokens: int) -> float:
    """``2 * max(w_p * L_in, w_q * M)``: L_in the longest prompt, M what the KV cache holds.

    Over the least weight of a tenant, since service is counted by weight.
    """
    longest = max(r.prompt_tokens for r in run.workload.requests)
    least = min(r.weight for r in run.workload.requests)
    return 2.0 * max(PROMPT_PRICE * longest, OUTPUT_PRICE * kv_tokens) / least


class _Events(NamedTuple):
    """What changes service or backlog, one row each; those of equal moment and place at once."""

    moment: IntArray
    """Step and phase in it."""
    place: IntArray
    """Order within the moment."""
    tenant: IntArray
    queued: FloatArray
    served: FloatArray


def _events(run: Run, found: Deliveries, names: Sequence[str]) -> _Events:
    requests = run.workload.requests
    code = {name: i for i, name in enumerate(names)}
    tenant = np.array([code[r.tenant] for r in requests])
    weight = np.array([r.weight for r in requests])
    prompt = np.array([r.prompt_tokens for r in requests])
    start_s, end_s = found.start_s, found.end_s

    def at(time_s: FloatArray) -> IntArray:
        """Moment of what happens outside of the steps."""
        step = np.searchsorted(start_s, time_s)
        during = (step > 0) & (time_s < end_s[np.maximum(step, 1) - 1])
        moments: IntArray = np.where(
            during, (step - 1) * _PHASES + _DURING, step * _PHASES + _BEFORE
        )
        return moments

    def rows(
        moment: IntArray, place: IntArray, row: IntArray, queued: float, served: FloatArray | float
    ) -> _Events:
        change, service = np.full(len(row), queued), np.empty(len(row))
        service[:] = served
        return _Events(moment, place, tenant[row], change, service / weight[row])

    every = np.arange(len(requests))
    came_s = np.array([max(r.arrival_s, r.ready_at_s) for r in requests])
    left = np.flatnonzero(found.ended_waiting(run))
    admitted, preempted = found.admitted, found.preempted
    parts = (
        rows(at(came_s), every, every, 1.0, 0.0),
        rows(at(run.finished_s[left]), len(every) + left, left, -1.0, 0.0),
        rows(
            preempted.step * _PHASES + _PREEMPTED, np.arange(len(preempted.row)),
            preempted.row, 1.0, 0.0,
        ),
        rows(
            admitted.step * _PHASES + _ADMITTED, admitted.place, admitted.row, -1.0,
            np.where(admitted.first, PROMPT_PRICE * prompt[admitted.row], 0.0),
        ),
        rows(
            found.step * _PHASES + _RESULTS, np.zeros_like(found.step), found.row, 0.0,
            OUTPUT_PRICE,
        ),
    )  # fmt: skip
    moment = np.concatenate([part.moment for part in parts])
    counted = moment <= at(came_s).max()
    return _Events(
        moment[counted],
        np.concatenate([part.place for part in parts])[counted],
        np.concatenate([part.tenant for part in parts])[counted],
        np.concatenate([part.queued for part in parts])[counted],
        np.concatenate([part.served for part in parts])[counted],
    )
