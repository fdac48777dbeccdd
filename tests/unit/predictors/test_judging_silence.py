from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.predictor import LEVELS, LengthDist
from batchpolicy_predictors.training.judging import _quantiles, quality, silences
from tests.unit.predictors.batches import batch


def test_a_row_of_which_nothing_is_said_is_counted_and_not_judged() -> None:
    said = LengthDist.exactly([5.0, 5.0, 5.0]).quantiles
    said[1] = np.nan
    found = quality(said, np.array([5, 500, 8]))
    assert (found.rows, found.silent) == (3, 1)
    assert found.mae == (0 + 3) / 2
    assert found.document()["silent"] == 1
    all_said = quality(said[[0, 2]], np.array([5, 8]))
    assert all_said.silent == 0
    assert all_said.mae == found.mae
    assert silences({"one": found, "other": all_said}) == [
        "one says nothing of 1 of the 3 rows; its figures are of the others."
    ]


def test_of_who_says_nothing_at_all_no_figure_is_known() -> None:
    found = quality(np.full((2, len(LEVELS)), np.nan), np.array([5, 8])).document()
    assert (found["rows"], found["silent"]) == (2, 2)
    assert {found[name] for name in ("tau", "c_index", "pinball_90", "mae", "coverage_90")} == {
        None
    }


def test_a_row_of_which_a_part_is_said_is_none_that_can_be_judged() -> None:
    said = LengthDist.exactly([5.0, 5.0]).quantiles
    said[1] = np.nan
    assert np.array_equal(_quantiles(LengthDist(said), batch(2)), said, equal_nan=True)
    said[0, 3] = np.nan
    with pytest.raises(ValueError, match="no numbers"):
        _quantiles(LengthDist(said), batch(2))
