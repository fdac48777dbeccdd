"""Admissions, preemptions and output tokens of a run, each in its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from batchpolicy.engine import Run, StepRecord
from batchpolicy.requests import BoolArray, FloatArray, IntArray


class Admissions(NamedTuple):
    """Requests that took a seat, in no order."""

    step: IntArray
    place: IntArray
    """Order in which the engine admitted them."""
    row: IntArray
    first: BoolArray
    """Whether it had never run before."""


class Preemptions(NamedTuple):
    """Requests that lost their seat, in order."""

    step: IntArray
    row: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Deliveries:
    """What became of the tokens of each step; requests are rows of the workload."""

    start_s: FloatArray
    """Of each step."""
    end_s: FloatArray
    admitted: Admissions
    preempted: Preemptions
    step: IntArray
    """Of each output token, the step that delivered it."""
    row: IntArray
    """Of each output token, its request."""

    @classmethod
    def of(cls, run: Run, records: Sequence[StepRecord]) -> Deliveries:
        """Of a run without prefix cache, from what its observer saw; ``records`` are all steps.

        A request emits a token in each step from the one on that completes what it had to
        compute: its prompt, and after a preemption what it had put out as well.
        """
        row_of = {r.id: i for i, r in enumerate(run.workload.requests)}
        sizes = [len(record.tokens) for record in records]
        step = np.repeat(np.arange(len(records)), sizes)
        ids = chain.from_iterable(record.tokens for record in records)
        row = np.array([row_of[i] for i in ids], dtype=np.int64)
        tokens = np.fromiter(
            chain.from_iterable(record.tokens.values() for record in records), np.int64, len(row)
        )
        lost = [(k, row_of[i]) for k, record in enumerate(records) for i in record.preempted]
        preempted = Preemptions(*np.array(lost, dtype=np.int64).reshape(-1, 2).T)
        # Together by request, in order of time.
        order = np.argsort(row, kind="stable")
        step, row, tokens = step[order], row[order], tokens[order]
        begins = np.diff(row, prepend=-1) != 0
        first = begins.copy()
        key = row * len(records) + step
        again = np.searchsorted(key, preempted.row * len(records) + preempted.step)
        inside = again < len(row)
        same = np.zeros_like(inside)
        same[inside] = row[again[inside]] == preempted.row[inside]
        begins[again[same]] = True
        admitted = Admissions(step[begins], order[begins], row[begins], first[begins])
        emits = _emits(run, row, tokens, begins)
        start_s = np.array([record.start_s for record in records])
        end_s = start_s + np.array([record.duration_s for record in records])
        return cls(start_s, end_s, admitted, preempted, step[emits], row[emits])

    def ended_waiting(self, run: Run) -> BoolArray:
        """Of each request of the run, whether it ended in the queue."""
        n = len(run.workload.requests)
        queued = 1 + np.bincount(self.preempted.row, minlength=n)
        waits: BoolArray = queued > np.bincount(self.admitted.row, minlength=n)
        return waits & np.isfinite(run.finished_s)


def _emits(run: Run, row: IntArray, tokens: IntArray, begins: BoolArray) -> BoolArray:
    """Which entries put out a token; ``begins`` marks those that start anew."""
    stint = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    summed = np.cumsum(tokens)
    computed = summed - (summed[starts] - tokens[starts])[stint]
    needed = np.array([r.prompt_tokens for r in run.workload.requests])
    owner = row[starts]
    # Which start of its request each stint is, from 0.
    nth = np.arange(len(owner)) - np.searchsorted(owner, owner)
    emits = np.zeros(len(row), dtype=np.bool_)
    for n in range(int(nth.max(initial=-1)) + 1):
        now = (nth == n)[stint]
        emits[now] = computed[now] >= needed[row[now]]
        np.add.at(needed, row[now], emits[now])
    return emits
