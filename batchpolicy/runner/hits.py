"""Prefix hits of requests that wait, for policies whose order needs them."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import Requests
from batchpolicy.runner.facts import Probe
from batchpolicy.runner.order import best_first
from batchpolicy.runner.table import RequestTable
from batchpolicy.state import StateArray

LOOK_UPS_A_STEP = 32
"""A look-up takes the engine 5 to 20 us."""


class Hits:
    """Keeps ``cached_tokens`` and ``need_kv_blocks`` of waiting rows near the truth.

    In each step that admits, those never looked up come first, then those looked up
    longest ago, so that any queue is gone through; in between rows keep what was found.
    """

    def __init__(self, table: RequestTable, probe: Probe) -> None:
        self._table = table
        table.may_hit_before_it_runs()
        self._probe = probe
        self._seen_at = StateArray(-1.0)
        """Plan in which each slot was last looked up."""
        self._seen_seq = StateArray(-1.0)
        """Whose slot it was then."""

    def look_up(self, waiting: Requests, index: int) -> None:
        """Ask the engine about some of the waiting rows; ``index`` is the step's."""
        slots, seq = waiting.slot, waiting.seq
        seen_at = np.where(self._seen_seq[slots] == seq, self._seen_at[slots], -1.0)
        rows = best_first(-seen_at, None, seq, LOOK_UPS_A_STEP)
        if not len(rows):
            return
        hits, needs = self._probe.prefix(waiting.take(rows).request_id)
        found = slots[rows]
        columns = self._table.columns
        columns["cached_tokens"][found] = hits
        columns["need_kv_blocks"][found] = needs
        self._seen_at[found] = float(index)
        self._seen_seq[found] = seq[rows].astype(np.float64)
