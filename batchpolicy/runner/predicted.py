"""Predictions that come with a tick, on every rank: from there to the columns."""

from __future__ import annotations

from batchpolicy.requests import QUANTILES
from batchpolicy.runner.facts import Predictions
from batchpolicy.runner.forecast import MEDIAN
from batchpolicy.runner.table import RequestTable


def write_predictions(table: RequestTable, told: Predictions) -> None:
    """Write them down; requests that have ended meanwhile do without, whoever has their ids."""
    columns, slots = table.columns, table.slots
    seqs, all_quantiles = columns["seq"], columns[QUANTILES]
    medians, highs = columns["predicted_output_tokens"], columns["predicted_output_high"]
    for row, request_id in enumerate(told.ids):
        slot = slots.get(request_id)
        if slot is None or seqs[slot] != told.seq[row]:
            continue
        quantiles = told.quantiles[row]
        all_quantiles[slot] = quantiles
        medians[slot] = median = quantiles[MEDIAN]
        highs[slot] = told.high[row]
        if table.at_default("predicted_output_tokens"):
            table.differ({"predicted_output_tokens": float(median)})
