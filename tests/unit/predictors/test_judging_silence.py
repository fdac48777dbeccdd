from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.predictor import LengthDist
from batchpolicy_predictors.training.judging import _quantiles
from tests.unit.predictors.batches import batch


def test_a_row_of_which_nothing_is_said_counts_with_its_ceiling() -> None:
    asked = batch(2)
    said = LengthDist.exactly([5.0, 5.0]).quantiles
    said[1] = np.nan
    found = _quantiles(LengthDist(said), asked)
    assert found[0].tolist() == [5.0] * 9
    assert found[1].tolist() == [float(asked.max_tokens[1])] * 9
    said[0, 3] = np.nan
    with pytest.raises(ValueError, match="no numbers"):
        _quantiles(LengthDist(said), asked)
