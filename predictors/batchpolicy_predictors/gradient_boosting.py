"""Predictions by a model that was trained on prompts and lengths of answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydantic import PrivateAttr, field_validator
from typing_extensions import override

from batchpolicy.plugin_modules import absolute
from batchpolicy.predictor import Arrivals, LengthDist, Predictor, within
from batchpolicy.requests import BoolArray, FloatArray, IntArray
from batchpolicy_predictors.histories import TenantHistory
from batchpolicy_predictors.model import Model
from batchpolicy_predictors.model_file import read_model
from batchpolicy_predictors.residuals import Residuals
from batchpolicy_predictors.samples import between


class GradientBoosting(Predictor):
    """A file of ``batchpolicy predictor train``, with errors corrected by the answers that come.

    Boosted trees say where the logarithm of a length is expected and how far it may be off;
    the quantiles are those of the latest errors, first those of the training. So a bias, such
    as another model's longer answers, goes as answers come, and the order stays the model's.
    Token ids count if they are those that it was trained on; without them a second set of
    trees does with the rest. Where tenants tell more than prompts do, their histories have
    the weight that did best in training.

    References
    ----------
    J. Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", Ann. Stat. 29,
    2001; Y. Romano et al., "Conformalized Quantile Regression", NeurIPS 2019.
    """

    model: Path
    """The model file; relative to the policy file."""
    online: bool = True
    """Whether answers that come correct the quantiles."""

    _model: Model = PrivateAttr()
    _with_ids: Residuals = PrivateAttr()
    _plain: Residuals = PrivateAttr()
    _history: TenantHistory = PrivateAttr(default_factory=TenantHistory)

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, path: Path) -> Path:
        found = absolute(str(path))
        read_model(found)
        return found

    @override
    def model_post_init(self, context: object) -> None:
        self._model = model = read_model(self.model)
        self._plain = Residuals(model.plain.residuals)
        self._with_ids = Residuals((model.with_ids or model.plain).residuals)

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        model, history = self._model, self._said_before(batch)
        known, location, scale = self._expected(batch, history)
        errors = np.where(known[:, None], self._with_ids.quantiles, self._plain.quantiles)
        # Within what a float holds; ceilings come next.
        logs = np.minimum(location[:, None] + scale[:, None] * errors, 60.0)
        found = np.exp(logs)
        if history is not None:
            weights = (model.plain.weight, (model.with_ids or model.plain).weight)
            found = between(history, found, np.where(known, weights[1], weights[0])[:, None])
        return within(found, batch.max_tokens)

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        if not len(batch):
            return
        if self.online:
            known, location, scale = self._expected(batch, self._said_before(batch))
            errors = (np.log(np.maximum(output_tokens, 1)) - location) / scale
            self._with_ids.add(errors[known])
            self._plain.add(errors[~known])
        self.recall(batch, output_tokens)

    def recall(self, batch: Arrivals, output_tokens: IntArray) -> None:
        """Take answers of before, such as those of the training, into the tenants' history only.

        As ``observe`` would, but for the errors: those of rows that it was fitted to are small.
        """
        if self._model.uses_history:
            self._history.observe(batch, output_tokens)

    @override
    def counts(self) -> Mapping[str, int]:
        return {"predictor_shifts": self._with_ids.shifts + self._plain.shifts}

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 9e-5 * (rows > 0) + 6e-6 * rows + 1.2e-4 * answers

    def _said_before(self, batch: Arrivals) -> FloatArray | None:
        """Quantiles that the tenants' histories say, where the model uses them."""
        return self._history.quantiles_of(batch.tenant) if self._model.uses_history else None

    def _expected(
        self, batch: Arrivals, history: FloatArray | None
    ) -> tuple[BoolArray, FloatArray, FloatArray]:
        """Which rows have token ids that count, and location and scale of each row."""
        model = self._model
        known, matrix = model.parts(batch, history)
        if model.with_ids is None or not known.any():
            return known, *model.plain.expect(matrix)
        if known.all():
            return known, *model.with_ids.expect(matrix)
        location, scale = np.empty(len(batch)), np.empty(len(batch))
        for rows, ensemble in ((known, model.with_ids), (~known, model.plain)):
            location[rows], scale[rows] = ensemble.expect(matrix[rows])
        return known, location, scale
