"""How good predictions were, once the answers are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from batchpolicy.predictor import LEVELS, Arrivals, LengthDist, Predictor
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_predictors.gradient_boosting import GradientBoosting
from batchpolicy_predictors.rank_metrics import concordance, kendall_tau
from batchpolicy_predictors.training.examples import Examples

BUCKETS = np.array([32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0])
"""Between these numbers of tokens a bucket is right."""
MIDDLE, NINETY = (int(np.flatnonzero(LEVELS == level)[0]) for level in (0.5, 0.9))


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of one predictor on the rows of which it said something; lengths in tokens.

    NaN where it said nothing of any row.
    """

    rows: int
    """All rows."""
    silent: int
    """Rows of which nothing was said, and which no figure is about."""
    tau: float
    """Kendall's tau-b of predicted medians and lengths; NaN if all predictions are equal."""
    c_index: float
    pinball_50: float
    """Mean pinball loss of the median; half the mean absolute error."""
    pinball_90: float
    coverage: tuple[float, ...]
    """Part of the answers within the quantile at each of ``LEVELS``."""
    mae: float
    bucket_accuracy: float
    """Part of the answers in the bucket of the median, bounds 32, 64 and so on to 2,048."""

    @property
    def coverage_90(self) -> float:
        """Part of the answers within the 0.9 quantile."""
        return self.coverage[NINETY]

    def document(self) -> dict[str, object]:
        """As JSON has it; None for what cannot be told."""
        told = {**asdict(self), "coverage_90": self.coverage_90}
        return {name: None if value != value else value for name, value in told.items()}


def pinball(truth: FloatArray, quantile: FloatArray, level: float) -> float:
    """Mean loss of a quantile, which the true one makes least."""
    above = truth - quantile
    return float(np.maximum(level * above, (level - 1.0) * above).mean())


def quality(quantiles: FloatArray, output_tokens: IntArray) -> Quality:
    """Figures of predicted quantiles, shape ``(n, 9)``, n at least 1; NaN says nothing."""
    said = ~np.isnan(quantiles[:, MIDDLE])
    rows, silent = len(said), int((~said).sum())
    if silent == rows:
        nan = float("nan")
        return Quality(rows, silent, nan, nan, nan, nan, (nan,) * len(LEVELS), nan, nan)
    quantiles, truth = quantiles[said], output_tokens[said].astype(np.float64)
    median = quantiles[:, MIDDLE]
    right = np.searchsorted(BUCKETS, median) == np.searchsorted(BUCKETS, truth)
    return Quality(
        rows=rows,
        silent=silent,
        tau=kendall_tau(median, truth),
        c_index=concordance(median, truth),
        pinball_50=pinball(truth, median, 0.5),
        pinball_90=pinball(truth, quantiles[:, NINETY], 0.9),
        coverage=tuple((truth[:, None] <= quantiles).mean(axis=0).tolist()),
        mae=float(np.abs(truth - median).mean()),
        bucket_accuracy=float(right.mean()),
    )


FIGURES = ("tau", "C-index", "pinball .5", "pinball .9", "within .9", "MAE", "bucket")
"""Heads of the columns in which ``cells`` stand."""


def cells(one: Quality) -> list[str]:
    """The figures as tables show them, a dash for what is not known."""
    shown = (
        f"{one.tau:.3f}",
        f"{one.c_index:.3f}",
        f"{one.pinball_50:.1f}",
        f"{one.pinball_90:.1f}",
        f"{one.coverage_90:.1%}",
        f"{one.mae:.1f}",
        f"{one.bucket_accuracy:.1%}",
    )
    return ["-" if "nan" in text else text for text in shown]


def silences(judged: Mapping[str, Quality]) -> list[str]:
    """A sentence on each predictor that said nothing of some rows."""
    return [
        f"{name} says nothing of {one.silent:,} of the {one.rows:,} rows; its figures are of the "
        "others."
        for name, one in judged.items()
        if one.silent
    ]


def asked_in_turn(predictor: Predictor, rows: Examples, *, told: bool = True) -> FloatArray:
    """What a predictor says of each row, shape ``(n, 9)``; NaN where it says nothing.

    Where ``told``, it hears of each answer before the next row, as if one request were served
    at a time.
    """
    if not told:
        return _quantiles(predictor.predict(rows.arrivals), rows.arrivals)
    return np.concatenate(list(_in_turn(predictor, rows)))


def tell(predictor: Predictor, rows: Examples) -> None:
    """Let a predictor observe rows, one after another; a model that they trained recalls them."""
    hears = predictor.recall if isinstance(predictor, GradientBoosting) else predictor.observe
    for row in range(len(rows)):
        one = np.array([row])
        hears(rows.arrivals.take(one), rows.output_tokens[one])


def _in_turn(predictor: Predictor, rows: Examples) -> Iterator[FloatArray]:
    for row in range(len(rows)):
        one = np.array([row])
        batch = rows.arrivals.take(one)
        yield _quantiles(predictor.predict(batch), batch)
        predictor.observe(batch, rows.output_tokens[one])


def _quantiles(said: object, batch: Arrivals) -> FloatArray:
    """What a predictor said, if it can be judged."""
    if not isinstance(said, LengthDist):
        raise TypeError(f"predict returned {type(said).__name__}, expected a LengthDist")
    shape = (len(batch), len(LEVELS))
    if np.shape(said.quantiles) != shape:
        raise ValueError(
            f"predict returned quantiles of shape {np.shape(said.quantiles)}, expected {shape}"
        )
    silent = np.logical_and.reduce(np.isnan(said.quantiles), axis=1)
    if not np.isfinite(said.quantiles[~silent]).all():
        raise ValueError("predict returned quantiles that are no numbers")
    return said.quantiles
