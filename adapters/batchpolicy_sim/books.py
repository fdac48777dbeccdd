"""What happened to each request of a replay."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import numpy as np

from batchpolicy.engine import Run
from batchpolicy.requests import FloatArray, IntArray, Status
from batchpolicy.workload import Workload
from batchpolicy_sim.job import Job


class Books:
    """What happened to each request, by its place in the workload."""

    def __init__(self, workload: Workload) -> None:
        n = len(workload.requests)
        self._workload = workload
        self._status = array("b", bytes(n))
        self.first_scheduled_s = array("d", [math.nan]) * n
        self.first_token_s = array("d", [math.nan]) * n
        self._finished_s = array("d", [math.nan]) * n
        self._gap_s = array("d", [0.0]) * n
        self._output = array("q", [0]) * n
        self.cached = array("q", [0]) * n
        self._preemptions = array("q", [0]) * n
        self.recomputed = array("q", [0]) * n
        self._arrival_s: dict[int, float] = {}
        """Arrivals that the workload did not know."""
        self.steps = 0
        self.peak_waiting = 0
        self.count = n
        self.open = n
        """Requests that have not ended."""

    def arrived(self, job: Job) -> None:
        """A request came, at a time that need not be the workload's."""
        if job.arrival_s != job.request.arrival_s:
            self._arrival_s[job.place] = job.arrival_s

    def end(self, job: Job, status: Status, now_s: float) -> None:
        """One request ended."""
        place = job.place
        self.open -= 1
        self._status[place] = int(status)
        self._finished_s[place] = now_s
        self._gap_s[place] = job.gap_s
        self._output[place] = job.out
        self._preemptions[place] = job.preemptions

    def run(self, engine: str, policy: str, end_s: float, counters: dict[str, int]) -> Run:
        """Everything as a ``Run``."""
        return Run(
            workload=self._as_it_came(),
            engine=engine,
            policy=policy,
            status=np.array(self._status, dtype=np.int64),
            first_scheduled_s=_floats(self.first_scheduled_s),
            first_token_s=_floats(self.first_token_s),
            finished_s=_floats(self._finished_s),
            longest_gap_s=_floats(self._gap_s),
            output_tokens=_ints(self._output),
            cached_tokens=_ints(self.cached),
            preemptions=_ints(self._preemptions),
            recomputed_tokens=_ints(self.recomputed),
            steps=self.steps,
            end_s=end_s,
            peak_waiting=self.peak_waiting,
            counters=counters,
        )

    def _as_it_came(self) -> Workload:
        """The workload with the arrivals that only the replay could know."""
        if not self._arrival_s:
            return self._workload
        requests = list(self._workload.requests)
        for place, arrival_s in self._arrival_s.items():
            requests[place] = replace(requests[place], arrival_s=arrival_s)
        return Workload(self._workload.name, tuple(requests))


def _floats(column: array[float]) -> FloatArray:
    return np.array(column, dtype=np.float64)


def _ints(column: array[int]) -> IntArray:
    return np.array(column, dtype=np.int64)
