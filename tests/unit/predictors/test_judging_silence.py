from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.predictor import LengthDist
from batchpolicy_predictors.training.judging import _quantiles, quality, silences
from tests.unit.predictors.batches import batch


def test_a_row_of_which_nothing_is_said_counts_with_its_ceiling_and_is_counted() -> None:
    said = LengthDist.exactly([5.0, 5.0, 5.0]).quantiles
    said[1] = np.nan
    found = quality(said, np.array([5, 5, 5]), np.array([100, 35, 100]))
    assert found.silent == 1
    assert found.mae == (35 - 5) / 3
    assert found.document()["silent"] == 1
    all_said = quality(said[[0, 2]], np.array([5, 5]), np.array([100, 100]))
    assert all_said.silent == 0
    assert silences({"one": found, "other": all_said}) == [
        "one says nothing of 1 of the 3 rows, which count with their ceilings."
    ]


def test_a_row_of_which_a_part_is_said_is_none_that_can_be_judged() -> None:
    said = LengthDist.exactly([5.0, 5.0]).quantiles
    said[1] = np.nan
    assert np.array_equal(_quantiles(LengthDist(said), batch(2)), said, equal_nan=True)
    said[0, 3] = np.nan
    with pytest.raises(ValueError, match="no numbers"):
        _quantiles(LengthDist(said), batch(2))
