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
from batchpolicy_predictors.model import Ensemble, Model
from batchpolicy_predictors.model_file import read_model
from batchpolicy_predictors.residuals import Residuals
from batchpolicy_predictors.samples import between
from batchpolicy_predictors.weighing import Weighing


class Learned:
    """What answers have taught about an ensemble since its training."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.residuals = Residuals(ensemble.residuals)
        self.weighing = Weighing(ensemble.losses)


class GradientBoosting(Predictor):
    """A file of ``batchpolicy predictor train``, with errors corrected by the answers that come.

    Boosted trees say where the logarithm of a length is expected and how far it may be off;
    the quantiles are those of the latest errors, first those of the training. So a bias, such
    as another model's longer answers, goes as answers come, and the order stays the model's.
    Token ids count if they are those that it was trained on; without them a second set of
    trees does with the rest. Each quantile goes towards that of the tenant's history as far
    as that has served better of late, first in training.

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
    _with_ids: Learned = PrivateAttr()
    _plain: Learned = PrivateAttr()
    _history: TenantHistory = PrivateAttr()

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, path: Path) -> Path:
        found = absolute(str(path))
        read_model(found)
        return found

    @override
    def model_post_init(self, context: object) -> None:
        self._model = model = read_model(self.model)
        self._plain = Learned(model.plain)
        self._with_ids = Learned(model.with_ids or model.plain)
        self._history = TenantHistory.after(model.lengths)

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        history = self._history.quantiles_of(batch.tenant)
        known, location, scale = self._expected(batch, history)
        said = self._quantiles(known, location, scale)
        told, plain = self._with_ids.weighing.weights, self._plain.weighing.weights
        return within(
            between(history, said, np.where(known[:, None], told, plain)), batch.max_tokens
        )

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        if not len(batch):
            return
        if self.online:
            self._learn(batch, output_tokens)
        self.recall(batch, output_tokens)

    def recall(self, batch: Arrivals, output_tokens: IntArray) -> None:
        """Take answers of before, such as those of the training, into the history only.

        As ``observe`` would, but for the errors: those of rows that it was fitted to are small.
        """
        self._history.observe(batch, output_tokens)

    @override
    def counts(self) -> Mapping[str, int]:
        return {"predictor_shifts": self._with_ids.residuals.shifts + self._plain.residuals.shifts}

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 9e-5 * (rows > 0) + 6e-6 * rows + 1.7e-4 * answers

    def _learn(self, batch: Arrivals, output_tokens: IntArray) -> None:
        history = self._history.quantiles_of(batch.tenant)
        known, location, scale = self._expected(batch, history)
        errors = (np.log(np.maximum(output_tokens, 1)) - location) / scale
        # Nothing is lost by what lies beyond a ceiling.
        said = within(self._quantiles(known, location, scale), batch.max_tokens).quantiles
        history = within(history, batch.max_tokens).quantiles
        typical = self._history.typical_tokens
        for rows, learned in ((known, self._with_ids), (~known, self._plain)):
            if rows.any():
                learned.residuals.add(errors[rows])
                learned.weighing.add(history[rows], said[rows], output_tokens[rows], typical)

    def _quantiles(self, known: BoolArray, location: FloatArray, scale: FloatArray) -> FloatArray:
        """What the model says by itself, shape ``(n, 9)``, whatever the ceilings."""
        told, plain = self._with_ids.residuals.quantiles, self._plain.residuals.quantiles
        errors = np.where(known[:, None], told, plain)
        # Within what a float holds; ceilings come next.
        return np.exp(np.minimum(location[:, None] + scale[:, None] * errors, 60.0))

    def _expected(
        self, batch: Arrivals, history: FloatArray
    ) -> tuple[BoolArray, FloatArray, FloatArray]:
        """Which rows have token ids that count, and location and scale of each row."""
        model = self._model
        known, matrix = model.parts(batch, history if model.uses_history else None)
        if model.with_ids is None or not known.any():
            return known, *model.plain.expect(matrix)
        if known.all():
            return known, *model.with_ids.expect(matrix)
        location, scale = np.empty(len(batch)), np.empty(len(batch))
        for rows, ensemble in ((known, model.with_ids), (~known, model.plain)):
            location[rows], scale[rows] = ensemble.expect(matrix[rows])
        return known, location, scale
