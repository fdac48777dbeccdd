"""Installed predictors keep the contract, and for each promise a broken one that breaks it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
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
from batchpolicy_predictors.histories import TenantHistory
from batchpolicy_predictors.oracles import NoisyOracle
from batchpolicy_predictors.template_neighbours import TemplateNeighbours
from batchpolicy_predictors.tracked import Tracked
from tests.support.small_model import saved, small_model


def installed(name: str, folder: Path) -> Predictor:
    model = str(saved(folder, small_model(uses_history=True)))
    parameters: dict[str, dict[str, Any]] = {
        "constant": {"output_tokens": 300},
        "gradient-boosting": {"model": model},
        "tracked": {"inner": {"name": "gradient-boosting", "model": model}},
    }
    return registry.predictor_class(name).model_validate(parameters.get(name, {}))


@pytest.mark.parametrize("name", registry.names(registry.PREDICTORS))
def test_every_installed_predictor_keeps_the_contract(name: str, tmp_path: Path) -> None:
    check_predictor(installed(name, tmp_path))


@pytest.mark.parametrize(
    ("cls", "parameters"),
    [
        (NoisyOracle, {"tau": 0.0}),
        (TenantHistory, {"most_tenants": 3, "window": 8}),
        (TemplateNeighbours, {"memory": 16, "neighbours": 4}),
        (Tracked, {"inner": {"name": "noisy-oracle", "tau": 0.0}, "most_classes": 2}),
        (Tracked, {"inner": "template-neighbours", "window": 32, "least_answers": 16}),
    ],
)
def test_so_do_others_with_other_parameters(
    cls: type[Predictor], parameters: dict[str, Any]
) -> None:
    check_predictor(cls.model_validate(parameters))


def test_the_kinds_that_this_project_brings_are_installed() -> None:
    names = registry.names(registry.PREDICTORS)
    assert set(names) >= {
        "max-tokens", "constant", "tenant-history", "history-conditional", "template-neighbours",
        "gradient-boosting", "tracked", "oracle", "noisy-oracle",
    }  # fmt: skip


class Sound(Predictor):
    """The ceiling, scaled by what was seen; the broken ones differ from it in one thing."""

    _part: deque[float] = PrivateAttr(default_factory=lambda: deque(maxlen=8))

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        part = self._part[-1] if self._part else 1.0
        return LengthDist.exactly(np.maximum(part * batch.max_tokens, 1.0))

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        if len(batch):
            self._part.append(min(float((output_tokens / batch.max_tokens).mean()), 1.0))


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


class HalfSilent(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        found = super().predict(batch).quantiles.copy()
        found[:, -1] = np.nan
        return LengthDist(found)


class CheaperByTheDozen(Sound):
    def cost_s(self, rows: int, answers: int) -> float:
        return 1e-3 if rows < 12 else 1e-4


class Measures(Sound):
    def cost_s(self, rows: int, answers: int) -> float:
        return 1e-5 * rows * len(self._part)


class Refunds(Sound):
    def cost_s(self, rows: int, answers: int) -> float:
        return float("nan")


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
        return LengthDist(np.where(batch.prompt_tokens[:, None] > 2**19, np.inf, found))


class NeverEmpty(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist(np.ones((1, 9))) if not len(batch) else super().predict(batch)


class KnowsNothingAtFirst(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        return super().predict(batch) if self._part else LengthDist.exactly(batch.max_tokens * 0)


class NeedsATemperature(Sound):
    def predict(self, batch: Arrivals) -> LengthDist:
        warm = np.ones(len(batch)) if batch.temperature is None else batch.temperature
        warm = np.nan_to_num(warm, nan=np.inf)
        known = batch.turn is None or (batch.turn < 0).all()
        # Only where all else is missing too.
        found = super().predict(batch).quantiles
        return LengthDist(np.maximum(found * warm[:, None], 1.0) if known else found)


class BelievesAnything(Sound):
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        if len(batch):
            self._part.append(float((output_tokens / batch.max_tokens).mean()))


class Scribbles(Sound):
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        super().observe(batch, output_tokens)
        np.maximum(batch.prompt_tokens, 2000, out=batch.prompt_tokens)


class Lends(Sound):
    _said: dict[int, LengthDist] = PrivateAttr(default_factory=dict)

    def predict(self, batch: Arrivals) -> LengthDist:
        key = hash((*batch.request_id, *batch.max_tokens.tolist(), *self._part))
        if len(self._said) > 64:
            self._said.clear()
        return self._said.setdefault(key, super().predict(batch))


class Hoards(Sound):
    _kept: list[str] = PrivateAttr(default_factory=list)

    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        super().observe(batch, output_tokens)
        self._kept += batch.tenant


class HoardsByClass(Sound):
    _kept: dict[int, int] = PrivateAttr(default_factory=dict)

    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        super().observe(batch, output_tokens)
        if batch.priority is not None:
            self._kept.update(zip(batch.priority.tolist(), output_tokens.tolist(), strict=True))


BROKEN = [
    (Forgets, predictors.check_parameters_survive, {"scale": 2.0}),
    (ThreeLevels, predictors.check_quantiles_are_nine_numbers_a_row, {}),
    (Bare, predictors.check_quantiles_are_nine_numbers_a_row, {}),
    (HalfSilent, predictors.check_quantiles_are_nine_numbers_a_row, {}),
    (Falls, predictors.check_quantiles_ascend, {}),
    (Nothing, predictors.check_lengths_are_possible, {}),
    (BeyondTheCeiling, predictors.check_lengths_are_possible, {}),
    (ByTheBatch, predictors.check_a_request_alone_is_predicted_as_in_a_batch, {}),
    (Dices, predictors.check_predictions_repeat, {}),
    (LearnsWhenAsked, predictors.check_predicting_changes_nothing, {}),
    (ShortOnly, predictors.check_extremes_are_predicted, {}),
    (NeverEmpty, predictors.check_no_requests_are_no_predictions, {}),
    (KnowsNothingAtFirst, predictors.check_it_predicts_before_it_has_seen_anything, {}),
    (NeedsATemperature, predictors.check_what_is_not_known_may_be_missing, {}),
    (BelievesAnything, predictors.check_any_answer_may_be_observed, {}),
    (Scribbles, predictors.check_what_it_is_given_stays_as_it_was, {}),
    (Lends, predictors.check_what_it_returned_is_the_callers, {}),
    (CheaperByTheDozen, predictors.check_its_cost_is_stated, {}),
    (Measures, predictors.check_its_cost_is_stated, {}),
    (Refunds, predictors.check_its_cost_is_stated, {}),
    (Hoards, predictors.check_memory_is_bounded, {}),
    (HoardsByClass, predictors.check_memory_is_bounded, {}),
]


class Silent(Sound):
    """Says nothing of every third request, and of nobody at first."""

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        if not self._part:
            return LengthDist.nothing(len(batch))
        found = super().predict(batch).quantiles.copy()
        found[batch.prompt_tokens % 3 == 0] = np.nan
        return LengthDist(found)


def test_a_sound_predictor_passes() -> None:
    check_predictor(Sound())


def test_so_does_one_that_says_nothing_of_some_requests() -> None:
    check_predictor(Silent())


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
