"""Whether a setting serves worse than the safe one, found out by taking turns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from batchpolicy.component import Component
from batchpolicy.policy import Step
from batchpolicy.requests import FloatArray, Requests, Status

BET = 0.8
"""Part of what it has that a guardrail stakes on each pair of windows."""
TTFT_RATIO = 1.1
"""Mean TTFT from which on a window without targets is worse than another, as a multiple."""
LONGEST_S = 86_400.0
"""Most that doubling makes of a time at the safe setting."""


class Guardrail(Component):
    """When a row of a table of regimes counts as worse than the safe setting.

    *Pairs*: for two windows one after the other the load is served once under the row and
    once under the safe setting, in alternating order, so that a load which rises or falls
    favours neither. The row lost if of the requests that came in its window a smaller share
    kept their targets until the window's end, by more than ``worse_by``; where too few have
    targets, if its mean TTFT was above 1.1 times the other's. Between pairs the row serves for
    ``free_windows``; after a pair that it lost the next one comes at once.

    *Alarm*: a stake of 1 is multiplied by 1.8 where the row lost, by 0.2 where it was better,
    and set to 1 where it falls below. At ``alarm_pairs`` the safe setting holds for
    ``back_off_s``, or twice as long as the last time if that was fewer than ``alarm_pairs``
    pairs ago. If the row is no worse, so that a pair is lost no more often than won, whatever
    the loads and the targets are, there are on average at least ``alarm_pairs`` pairs to a
    false alarm. A row that always loses is found after 11 pairs at 500.

    References
    ----------
    J. Shin, A. Ramdas and A. Rinaldo, "E-detectors: a nonparametric framework for sequential
    change detection", arXiv 2203.03532 (the bound on false alarms).
    """

    window_s: PositiveFloat = 20.0
    """Length of a window, in seconds; longer than a queue needs to show what a setting does."""
    free_windows: NonNegativeInt = 16
    """Windows that the row serves between two pairs."""
    least_requests: PositiveInt = 20
    """Requests that each window of a pair must have; else the pair says nothing."""
    worse_by: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.02
    """Share of the requests by which a window must be worse to count."""
    alarm_pairs: Annotated[float, Field(gt=1.0)] = 500.0
    """Pairs between two false alarms, on average and at least."""
    back_off_s: PositiveFloat = 1800.0
    """How long the safe setting holds after an alarm, in seconds."""


class Score(NamedTuple):
    """What became of the requests that came in a window, until its end."""

    met: int
    judged: int
    """Those with targets that met or missed them so far."""
    ttft_s: float
    """Sum over all that started or wait still; of the latter, the time they have waited."""
    requests: int
    """How many these are."""


def lost(row: Score, safe: Score, least: int, worse_by: float) -> bool | None:
    """Whether the row lost a pair; None for a tie, or where there are too few requests."""
    if min(row.judged, safe.judged) >= least:
        drop = safe.met / safe.judged - row.met / row.judged
        return drop > worse_by if drop > worse_by or drop < 0.0 else None
    if min(row.requests, safe.requests) < least:
        return None
    ratio = (row.ttft_s / row.requests) / max(safe.ttft_s / safe.requests, 1e-9)
    return ratio > TTFT_RATIO if ratio > TTFT_RATIO or ratio < 1.0 else None


def staked(stake: float, worse: bool) -> float:
    """What a stake is after a pair that the row lost, or won."""
    return max(stake * (1.0 + BET if worse else 1.0 - BET), 1.0)


class Window:
    """Counts what becomes of the requests that come from ``start_s`` on."""

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self._ended = Score(0, 0, 0.0, 0)

    def finished(self, rows: Requests) -> None:
        """Requests ended; those that clients gave up say nothing."""
        mine = (rows.arrival_s >= self.start_s) & (rows.status != Status.ABORTED)
        if mine.any():
            rows = rows.take(mine)
            ended_s = np.where(np.isnan(rows.first_token_s), math.inf, rows.last_token_s)
            whole = rows.status == Status.FINISHED
            self._ended = _added(self._ended, _score(rows, np.where(whole, ended_s, math.inf)))

    def closed(self, step: Step) -> Score:
        """The whole at ``step.now_s``, with the requests that live."""
        found = self._ended
        for rows in (step.running, step.waiting):
            rows = rows.take(rows.arrival_s >= self.start_s)
            if len(rows):
                found = _added(found, _score(rows, np.full(len(rows), step.now_s)))
        return found


def _score(rows: Requests, until_s: FloatArray) -> Score:
    """Rows that ended or were looked at at ``until_s``; inf for those that failed."""
    first_s, due_s = rows.first_token_s, rows.first_token_due_s
    targeted = np.isfinite(rows.ttft_slo_s) | np.isfinite(rows.tpot_slo_s)
    waits = np.isnan(first_s)
    # Of a whole answer the last token counts, of others the one to come.
    tokens = rows.output_tokens - (rows.status == Status.FINISHED)
    with np.errstate(invalid="ignore"):
        next_due_s = np.where(tokens > 0, first_s + tokens * rows.tpot_slo_s, math.inf)
        met = (first_s <= due_s) & (until_s <= next_due_s + 1e-9) & np.isfinite(until_s)
    judged = targeted & (~waits | (until_s > due_s) | ~np.isfinite(until_s))
    ttft_s = np.where(waits, until_s, first_s) - rows.arrival_s
    known = np.isfinite(ttft_s)
    return Score(
        int((met & judged).sum()),
        int(judged.sum()),
        float(ttft_s[known].sum()),
        int(known.sum()),
    )


def _added(a: Score, b: Score) -> Score:
    return Score(a.met + b.met, a.judged + b.judged, a.ttft_s + b.ttft_s, a.requests + b.requests)


@dataclass(slots=True)
class _Trial:
    """What is known of one row."""

    stake: float = 1.0
    pairs: int = 0
    """Since it was last held back."""
    safe_first: bool = True
    """In the pair that goes on, or the next."""
    scores: list[Score] | None = field(default_factory=list[Score])
    """Of the pair that goes on; None between pairs."""
    free: int = 0
    """Windows until the next pair."""
    held: bool = False
    held_until_s: float = -math.inf
    back_off_s: float = 0.0
    """How long it was held back the last time; 0 for never."""


class Watch:
    """Says when a row serves and when the safe setting does, while the load calls for the row."""

    def __init__(self, rule: Guardrail, rows: int) -> None:
        self._rule = rule
        self._trials = [_Trial() for _ in range(rows)]
        self._row = -1
        self._window = Window(-math.inf)

    def enter(self, row: int, now_s: float) -> None:
        """The load calls for another row, -1 for none that is watched; a pair begun is void."""
        self._row = row
        self._window = Window(now_s)
        if row >= 0 and self._trials[row].scores:
            self._trials[row].scores = []

    def serves(self) -> bool:
        """Whether the row serves now, and not the safe setting in its place."""
        if self._row < 0:
            return True
        trial = self._trials[self._row]
        if trial.held:
            return False
        return trial.scores is None or (len(trial.scores) == 0) != trial.safe_first

    def advance(self, step: Step) -> float:
        """End the window if it is over; for how long the row is held back from now on, else 0."""
        now_s = step.now_s
        if self._row < 0 or now_s < self._window.start_s + self._rule.window_s:
            return 0.0
        trial, window = self._trials[self._row], self._window
        self._window = Window(now_s)
        if trial.held:
            # Ends with a window, so that what is seen of one is all of one setting.
            trial.held = now_s < trial.held_until_s
            return 0.0
        if trial.scores is None:
            trial.free -= 1
            if trial.free <= 0:
                trial.scores = []
            return 0.0
        trial.scores.append(window.closed(step))
        return self._judged(trial, now_s) if len(trial.scores) == 2 else 0.0

    def finished(self, rows: Requests) -> None:
        """Requests ended."""
        if self._row >= 0:
            self._window.finished(rows)

    def _judged(self, trial: _Trial, now_s: float) -> float:
        rule, pair = self._rule, trial.scores or []
        safe, row = pair if trial.safe_first else pair[::-1]
        trial.scores, trial.safe_first = [], not trial.safe_first
        trial.pairs += 1
        worse = lost(row, safe, rule.least_requests, rule.worse_by)
        if worse is not None:
            trial.stake = staked(trial.stake, worse)
        if trial.stake >= rule.alarm_pairs:
            again = trial.back_off_s > 0.0 and trial.pairs < rule.alarm_pairs
            longer_s = min(2.0 * trial.back_off_s, max(LONGEST_S, rule.back_off_s))
            trial.back_off_s = longer_s if again else rule.back_off_s
            trial.held, trial.held_until_s = True, now_s + trial.back_off_s
            trial.stake, trial.pairs = 1.0, 0
            return trial.back_off_s
        elif not worse and rule.free_windows:
            trial.scores, trial.free = None, rule.free_windows
        return 0.0
