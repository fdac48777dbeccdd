"""The virtual clock of a replay, and what happened to each of its requests."""

from __future__ import annotations

import math

import numpy as np

from batchpolicy.engine import Run
from batchpolicy.requests import Status
from batchpolicy.workload import Workload


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time now."""
        return self.now_s


class Books:
    """What happened to each request, by its place in the workload."""

    def __init__(self, workload: Workload) -> None:
        n = len(workload.requests)
        self.workload = workload
        self.place = {r.id: i for i, r in enumerate(workload.requests)}
        self.status = np.full(n, int(Status.WAITING), dtype=np.int64)
        self.first_scheduled_s = np.full(n, np.nan)
        self.first_token_s = np.full(n, np.nan)
        self.finished_s = np.full(n, np.nan)
        self.gap_s = np.zeros(n)
        self.output = np.zeros(n, dtype=np.int64)
        self.cached = np.zeros(n, dtype=np.int64)
        self.preemptions = np.zeros(n, dtype=np.int64)
        self.recomputed = np.zeros(n, dtype=np.int64)
        self.last_token_s = [math.nan] * n
        self.reached: dict[str, int] = {}
        """Most tokens ever computed of each request that was preempted."""
        self.steps = 0
        self.end_s = 0.0
        self.peak_waiting = 0

    def token(self, place: int, tokens: int, now_s: float) -> None:
        """Tokens of one request came out."""
        last_s = self.last_token_s[place]
        if math.isnan(last_s):
            self.first_token_s[place] = now_s
        else:
            self.gap_s[place] = max(self.gap_s[place], now_s - last_s)
        self.last_token_s[place] = now_s
        self.output[place] += tokens

    def end(self, place: int, status: Status, now_s: float) -> None:
        """One request ended."""
        self.status[place] = int(status)
        self.finished_s[place] = now_s

    def run(self, engine: str, policy: str, counters: dict[str, int]) -> Run:
        """Everything as a ``Run``."""
        return Run(
            workload=self.workload,
            engine=engine,
            policy=policy,
            status=self.status,
            first_scheduled_s=self.first_scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=self.finished_s,
            longest_gap_s=self.gap_s,
            output_tokens=self.output,
            cached_tokens=self.cached,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed,
            steps=self.steps,
            end_s=self.end_s,
            peak_waiting=self.peak_waiting,
            counters=counters,
        )
