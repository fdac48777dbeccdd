"""Predictions that come with a tick, on every rank: from there to the columns."""

from __future__ import annotations

from batchpolicy.predictor import LengthDist
from batchpolicy.requests import QUANTILES
from batchpolicy.runner.facts import Predictions
from batchpolicy.runner.forecast import MEDIAN
from batchpolicy.runner.table import RequestTable


def write_predictions(table: RequestTable, told: Predictions, quantile: float) -> None:
    """Write them down; requests that have ended meanwhile do without.

    ``quantile`` is that of ``predicted_output_high``.
    """
    slots = [table.slots.get(i, -1) for i in told.ids]
    for slot, quantiles in zip(slots, told.quantiles, strict=True):
        if slot >= 0:
            table.columns[QUANTILES][slot] = quantiles
            table.columns["predicted_output_tokens"][slot] = quantiles[MEDIAN]
            table.differ({"predicted_output_tokens": float(quantiles[MEDIAN])})
    known = [slot for slot in slots if slot >= 0]
    high = LengthDist(table.columns[QUANTILES][known]).quantile(quantile)
    table.columns["predicted_output_high"][known] = high
