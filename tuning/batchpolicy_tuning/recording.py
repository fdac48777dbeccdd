"""One run over time: its queue, its memory and its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.requests import FloatArray, IntArray

POINTS = 600
"""Parts of equal length that a run is cut into."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What happened in one run, shape ``(POINTS,)`` over time and ``(n,)`` by request."""

    run: Run
    at_s: FloatArray
    """Starts of the parts; the last ends with the run."""
    waiting: IntArray
    """The longest queue in each part."""
    running: IntArray
    kv_used_frac: FloatArray
    """The largest part of the KV cache in use."""
    breaks_s: Sequence[Sequence[tuple[float, float]]]
    """By request: when it was preempted, and when it was scheduled again; NaN for never."""


class Recorder:
    """An observer that keeps what a report draws, at little cost to the replay."""

    def __init__(self, limits: EngineLimits) -> None:
        self._kv_blocks = limits.kv_blocks
        self._rows: list[tuple[float, int, int, float]] = []
        self._end_s = 0.0
        self._away: dict[str, float] = {}
        self._breaks: dict[str, list[tuple[float, float]]] = {}

    def __call__(self, step: StepRecord, /) -> None:
        """Take one step."""
        if self._rows and step.start_s > self._end_s:
            # Nothing was computed until now, so nothing ran and nothing held KV.
            self._rows.append((self._end_s, self._rows[-1][1], 0, 0.0))
        used = 1.0 - step.free_kv_blocks / self._kv_blocks
        self._rows.append((step.start_s, step.waiting, step.running, max(used, 0.0)))
        self._end_s = step.start_s + step.duration_s
        if self._away:
            for request_id in [r for r in self._away if r in step.tokens]:
                self._break(request_id, step.start_s)
        for request_id in step.preempted:
            self._away[request_id] = step.start_s

    def recording(self, run: Run) -> Recording:
        """The run that was observed, as a recording."""
        for request_id in list(self._away):
            self._break(request_id, float("nan"))
        requests = run.workload.requests
        rows = self._rows or [(requests[0].arrival_s, 0, 0, 0.0)]
        at_s, *values = (np.array(column) for column in zip(*rows, strict=True))
        edges_s = np.linspace(requests[0].arrival_s, max(run.end_s, float(at_s[-1])), POINTS + 1)
        waiting, running, used = (_largest(at_s, value, edges_s) for value in values)
        return Recording(
            run=run,
            at_s=edges_s[:-1],
            waiting=waiting.astype(np.int64),
            running=running.astype(np.int64),
            kv_used_frac=used,
            breaks_s=[self._breaks.get(r.id, []) for r in requests],
        )

    def _break(self, request_id: str, again_s: float) -> None:
        breaks = self._breaks.setdefault(request_id, [])
        breaks.append((self._away.pop(request_id), again_s))


def _largest(at_s: FloatArray, value: FloatArray, edges_s: FloatArray) -> FloatArray:
    """The largest value in each part, where each value holds until the next."""
    parts = len(edges_s) - 1
    # What holds when a part begins; 0 before the first.
    before = np.searchsorted(at_s, edges_s[:-1], side="right") - 1
    largest = np.where(before >= 0, value[before], 0.0)
    inside = np.clip(np.searchsorted(edges_s, at_s, side="right") - 1, 0, parts - 1)
    np.maximum.at(largest, inside, value)
    return largest
