"""What running and waiting requests will still put out, as admission assumes it."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np

from batchpolicy.config import Memory
from batchpolicy.predictor import LEVELS, LengthDist
from batchpolicy.requests import QUANTILES, BoolArray, FloatArray, Requests
from batchpolicy.runner.calibration import Calibration
from batchpolicy.runner.clearance import Clearance, Sizes, sizes_of
from batchpolicy.runner.facts import EngineFacts
from batchpolicy.runner.lengths import LengthHistory
from batchpolicy.runner.peak import AT_ONCE, PATH_LEVELS, Coming, Peak
from batchpolicy.runner.safety import MOST, Safety
from batchpolicy.runner.table import RequestTable
from batchpolicy.state import StateArray

MEDIAN = 4
"""Place of the median among the levels."""
_LONGEST = PATH_LEVELS[-1:]
Told = Literal["nothing", "estimates", "as told"]
"""What a predictor says of requests: nothing, as there is none; estimates, which are held
against the answers that come; or what is taken as it is told."""


class Forecast:
    """Lengths of answers: predicted ones as they have proved, else those of earlier answers.

    Learns from each answer that completes, and from nothing else that could differ
    between two runs.
    """

    def __init__(
        self, table: RequestTable, memory: Memory, counters: Counter[str], told: Told
    ) -> None:
        self._as_told = told == "as told"
        self._predicts = told != "nothing"
        self._table = table
        self._counters = counters
        self._quantile = np.array([memory.quantile])
        self._history = LengthHistory(memory.first_guess_tokens)
        self._calibration = Calibration()
        self._safety = Safety(memory.quantile, memory.max_preemption_rate)
        self._clear = Clearance()
        self._evicted = StateArray()
        """1 for each slot whose KV was dropped for want of room."""

    def arrived(self, slot: int) -> None:
        """A slot has a new owner."""
        self._evicted.put(slot, 0.0)

    def evicted(self, slot: int) -> None:
        """A running request lost its KV because there was no room, not for a better one."""
        if not self._evicted.at(slot):
            self._evicted.put(slot, 1.0)
            self._counters["short_of_kv"] += 1

    def answered(self, slot: int) -> None:
        """A request has put out its whole answer; its row must still be there."""
        columns = self._table.columns
        out = int(columns["output_tokens"][slot])
        if out < 1:
            return
        predicted, brought = columns[QUANTILES][slot, MEDIAN], columns["predicted_output_tokens"]
        median = float(brought[slot] if predicted != predicted else predicted)
        if median != median or self._predicts:
            # A predictor may be late, or fall silent.
            self._history.add(out)
        if median == median and (not self._as_told or predicted != predicted):
            self._calibration.add(median, out)
        self._safety.answered(self._evicted.at(slot) > 0.0)
        self._counters["safety_milli"] = round(1000.0 * self._safety.deviations)

    def peak(
        self, running: Requests, best: Requests, free_blocks: int, engine: EngineFacts, index: int
    ) -> Peak | None:
        """What running rows may hold while ``best`` are added one by one; None if all fit anyway.

        ``free_blocks`` are free now, the watermark taken off; ``index`` numbers the step.
        """
        block = engine.kv_block_tokens
        spare = (free_blocks - len(running) - int(best.need_kv_blocks.sum())) * block
        if self._clear.still(best, spare, index):
            return None
        growth = int((running.max_tokens - running.output_tokens).sum()) + int(
            best.max_tokens.sum()
        )
        if growth <= spare:
            return None
        self._history.look(running.output_tokens)
        if self._look_at(running, best, index) <= spare:
            return None
        left = self.left(running)
        prefill = running.prefill_tokens
        own = running.computed_tokens + prefill - running.cached_tokens
        held = (engine.total_kv_blocks - free_blocks) * block
        # Prompts take their turn, and answers end as much later.
        rate = max(engine.max_token_budget - engine.decode_tokens * (len(running) + AT_ONCE), 1)
        chunk = engine.max_prefill_chunk or engine.max_token_budget
        queued = int(prefill.sum())
        later = np.where(prefill > 0, queued // rate + prefill // chunk, 0)

        def coming(first: int, end: int) -> Coming:
            rows = best.take(np.arange(first, min(end, len(best))))
            own_prefill = rows.prefill_tokens
            later = (queued + np.cumsum(own_prefill)) // rate + own_prefill // chunk
            return Coming(self.left(rows) + later[:, None], block - 1.0)

        return Peak(
            # The last block of each is rarely full.
            (own + (block - 1.0)).astype(np.float64),
            left + later[:, None],
            coming,
            shared_tokens=max(held - float(own.sum()) - len(own) * (block - 1), 0.0),
            most_tokens=float(engine.total_kv_blocks * block),
            deviations=self._deviations(running),
        )

    def _look_at(self, running: Requests, best: Requests, index: int) -> float:
        """Tokens that come at most from these, each by the longest of its lengths."""
        clear = self._clear
        each, sizes = float(self._history.given(np.zeros(1), _LONGEST)[0, 0]), None
        if not self._table.at_default("predicted_output_tokens"):
            sizes = sizes_of(running, best)
            each = min(max(each, self._longest_of(sizes)), sizes.ceiling)
        clear.seen(index, (running, best), each, sizes)
        clear.tokens = float(self.left(running, _LONGEST).sum() + self.left(best, _LONGEST).sum())
        return clear.tokens

    def _longest_of(self, sizes: Sizes) -> float:
        """The longest length of one that is predicted up to these sizes."""
        longest = max(sizes.median, sizes.high)
        if self._calibration.ready and sizes.median > 0.0:
            median = np.array([sizes.median])
            fitted = self._calibration.given(median, np.zeros(1), _LONGEST)
            longest = max(longest, float(fitted[0, 0]))
        return longest

    def _deviations(self, running: Requests) -> float:
        """How many to keep in hand; most while the lengths are a guess."""
        guesses = self._history.guesses and bool(np.isnan(self._medians(running)).any())
        return max(self._safety.deviations, MOST) if guesses else self._safety.deviations

    def left(self, rows: Requests, levels: FloatArray = PATH_LEVELS) -> FloatArray:
        """Tokens to come at these levels, at least 1, ascending along rows; ``(n, k)``.

        By default equally likely ones.
        """
        out = rows.output_tokens.astype(np.float64)
        medians = self._medians(rows)
        known = medians == medians
        if not known.any():
            totals = self._history.given(out, levels)
        elif known.all():
            totals = self._predicted(rows, medians, out, levels)
        else:
            totals = np.empty((len(rows), len(levels)))
            totals[~known] = self._history.given(out[~known], levels)
            totals[known] = self._predicted(rows.take(known), medians[known], out[known], levels)
        np.minimum(totals, rows.max_tokens[:, None], out=totals)
        totals -= out[:, None]
        return np.maximum(totals, 1.0, out=totals)

    def refresh(self, rows: Requests) -> None:
        """Bring what a predictor said of rows up to what they have put out."""
        if not self._predicts:
            return
        rows = rows.take(_from_predictor(rows))
        if not len(rows):
            return
        levels = np.concatenate([LEVELS[MEDIAN : MEDIAN + 1], self._quantile])
        given = LengthDist(rows.output_quantiles).given_at(rows.output_tokens, levels)
        given = np.minimum(given, rows.max_tokens[:, None])
        columns = self._table.columns
        columns["predicted_output_tokens"][rows.slot] = given[:, 0]
        columns["predicted_output_high"][rows.slot] = given[:, 1]

    def _medians(self, rows: Requests) -> FloatArray:
        """Medians as they were predicted at the arrival, ``NaN`` where nothing was."""
        brought = rows.predicted_output_tokens
        if not self._predicts:
            return brought
        predicted = rows.output_quantiles[:, MEDIAN]
        return np.where(np.isnan(predicted), brought, predicted)

    def _predicted(
        self, rows: Requests, medians: FloatArray, out: FloatArray, levels: FloatArray
    ) -> FloatArray:
        ours = _from_predictor(rows)
        fitted = self._calibration.ready and not (self._as_told and ours.all())
        if fitted and not self._as_told:
            return self._calibration.given(medians, out, levels)
        # What a request brings is one number, without a word on how sure it is.
        quantiles = np.where(ours[:, None], rows.output_quantiles, medians[:, None])
        told = LengthDist(quantiles).given_at(out, levels)
        if fitted:
            told[~ours] = self._calibration.given(medians[~ours], out[~ours], levels)
        return told


def _from_predictor(rows: Requests) -> BoolArray:
    return ~np.isnan(rows.output_quantiles[:, MEDIAN])
