"""Predictions that come with a tick, on every rank: from there to the columns."""

from __future__ import annotations

from batchpolicy.requests import QUANTILES
from batchpolicy.runner.facts import Predictions
from batchpolicy.runner.forecast import MEDIAN
from batchpolicy.runner.table import RequestTable


def write_predictions(table: RequestTable, told: Predictions) -> None:
    """Write them down; requests that have ended meanwhile do without, whoever has their ids."""
    columns, slots = table.columns, table.slots
    first = table.at_default("predicted_output_tokens")
    rows = zip(told.ids, told.quantiles, told.high.tolist(), told.seq.tolist(), strict=True)
    for request_id, quantiles, high, seq in rows:
        slot = slots.get(request_id)
        if slot is None or columns["seq"][slot] != seq:
            continue
        columns[QUANTILES][slot] = quantiles
        columns["predicted_output_tokens"][slot] = quantiles[MEDIAN]
        columns["predicted_output_high"][slot] = high
        if first:
            table.differ({"predicted_output_tokens": float(quantiles[MEDIAN])})
