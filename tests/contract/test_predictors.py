"""Installed predictors keep the contract, and for each promise a broken one that breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import Field, PrivateAttr
from typing_extensions import override

from batchpolicy import registry
from batchpolicy.errors import PolicyContractError
from batchpolicy.predictor import Arrivals, LengthDist, Predictor
from batchpolicy.requests import IntArray
from batchpolicy.testing import check_predictor, predictors

PARAMETERS: dict[str, dict[str, Any]] = {"constant": {"output_tokens": 300}}
INSTALLED = [
    registry.predictor_class(name).model_validate(PARAMETERS.get(name, {}))
    for name in registry.names(registry.PREDICTORS)
]


@pytest.mark.parametrize("predictor", INSTALLED, ids=lambda one: type(one).__name__)
def test_every_installed_predictor_keeps_the_contract(predictor: Predictor) -> None:
    check_predictor(predictor)


def test_the_kinds_that_this_project_brings_are_installed() -> None:
    names = registry.names(registry.PREDICTORS)
    assert {"max-tokens", "constant", "oracle", "noisy-oracle"} <= set(names)


class Sound(Predictor):
    """The ceiling, scaled by what was seen; the broken ones differ from it in one thing."""

    _part: list[float] = PrivateAttr(default_factory=list)

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        part = self._part[-1] if self._part else 1.0
        return LengthDist.exactly(np.maximum(part * batch.max_tokens, 1.0))

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        self._part.append(float((output_tokens / batch.max_tokens).mean()))


class Forgets(Sound):
    scale: float = Field(1.0, exclude=True)


class ThreeLevels(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist(np.ones((len(batch), 3)))


class Bare(Sound):
    def predict(self, batch: Arrivals) -> Any:
        return np.ones(len(batch))


class Falls(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        found = super().predict(batch).quantiles.copy()
        found[:, -1] = 1.0
        return LengthDist(found)


class Nothing(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist.exactly(np.zeros(len(batch)))


class BeyondTheCeiling(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist.exactly(batch.max_tokens + 1)


class ByTheBatch(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        share = 1.0 / max(len(batch), 1)
        return LengthDist.exactly(np.maximum(share * batch.max_tokens, 1.0))


class Dices(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        parts = np.random.default_rng().random(len(batch))
        return LengthDist.exactly(np.maximum(parts * batch.max_tokens, 1.0))


class LearnsWhenAsked(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        found = super().predict(batch)
        # Where one is asked at a time nothing seems to move.
        if len(batch) > 1:
            self._part.append(0.9 * (self._part[-1] if self._part else 1.0))
        return found


class ShortOnly(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        found = super().predict(batch).quantiles
        return LengthDist(np.where(batch.prompt_tokens[:, None] > 2**19, np.nan, found))


class NeverEmpty(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist(np.ones((1, 9))) if not len(batch) else super().predict(batch)


BROKEN = [
    (Forgets, predictors.check_parameters_survive, {"scale": 2.0}),
    (ThreeLevels, predictors.check_quantiles_are_nine_numbers_a_row, {}),
    (Bare, predictors.check_quantiles_are_nine_numbers_a_row, {}),
    (Falls, predictors.check_quantiles_ascend, {}),
    (Nothing, predictors.check_lengths_are_possible, {}),
    (BeyondTheCeiling, predictors.check_lengths_are_possible, {}),
    (ByTheBatch, predictors.check_a_request_alone_is_predicted_as_in_a_batch, {}),
    (Dices, predictors.check_predictions_repeat, {}),
    (LearnsWhenAsked, predictors.check_predicting_changes_nothing, {}),
    (ShortOnly, predictors.check_extremes_are_predicted, {}),
    (NeverEmpty, predictors.check_no_requests_are_no_predictions, {}),
]


def test_a_sound_predictor_passes() -> None:
    check_predictor(Sound())


def test_each_check_has_one_that_it_catches() -> None:
    assert {check for _, check, _ in BROKEN} == set(predictors.predictor_checks())


@pytest.mark.parametrize(
    ("broken", "check", "parameters"), BROKEN, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_broken_predictor_is_caught(
    broken: type[Predictor], check: predictors.PredictorCheck, parameters: dict[str, Any]
) -> None:
    predictor = broken.model_validate(parameters)
    with pytest.raises(PolicyContractError, match=broken.__name__):
        check(predictor)
    with pytest.raises(PolicyContractError):
        check_predictor(predictor)
