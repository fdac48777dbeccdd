"""From examples to a model with its card."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np

from batchpolicy.errors import WorkloadError
from batchpolicy_predictors import features
from batchpolicy_predictors.model import Model
from batchpolicy_predictors.training.examples import (
    Examples,
    held_out_end,
    held_out_groups,
)
from batchpolicy_predictors.training.fit import Fitted, Progress, fit
from batchpolicy_predictors.weighing import Weighing

FEWEST = 50
"""Rows to fit to, below which nothing can be learned."""
Split = Literal["auto", "group", "time"]


def split_of(rows: Examples, split: Split, share: float, seed: int) -> tuple[Examples, Examples]:
    """Rows to fit to, and rows to judge on.

    By group, whole groups are held out; by time, the last part is, as a served model sees
    it: prompts that came before may come again.

    Raises
    ------
    WorkloadError
        When the rows have no times to split by, or too few are left on a side.
    """
    if split == "time" and rows.time_s is None:
        raise WorkloadError(f"{rows.name}: has no times; give --time-field, or --split group")
    by_time = split == "time" or (split == "auto" and rows.time_s is not None)
    held = held_out_end(rows, share) if by_time else held_out_groups(rows, share, seed)
    fitted, judged = rows.take(np.flatnonzero(~held)), rows.take(np.flatnonzero(held))
    if len(fitted) < FEWEST or len(judged) < FEWEST // 5:
        raise WorkloadError(
            f"{rows.name}: {len(rows)} rows leave {len(fitted)} to fit to and {len(judged)} to "
            f"judge on; expected at least {FEWEST} and {FEWEST // 5}"
            + ("" if by_time else f". Groups stay whole, and there are {len(set(rows.group))}")
        )
    return fitted, judged


def train(
    rows: Examples, fitted: Examples, split: dict[str, Any], licence: str, progress: Progress
) -> Model:
    """A model of the rows in ``fitted``; ``split`` says how they were chosen."""
    parts = fit(fitted, split["seed"], progress)
    groups = np.unique(fitted.group_hashes())
    card: dict[str, Any] = {
        "kind": "gradient-boosting",
        "data": [asdict(source) for source in rows.sources],
        "licence": licence,
        "rows": {"all": len(rows), "fitted": len(fitted), "left_out": rows.left_out},
        "split": split,
        "tokens": {
            "id_space": rows.arrivals.id_space,
            "prompts": rows.prompts,
            "lengths": rows.lengths,
        },
        "features": {
            "all": list(features.NAMES),
            "with_ids": None if parts.with_ids is None else _made_of(parts.with_ids),
            "without_ids": _made_of(parts.plain),
        },
        "typical_tokens": float(np.median(fitted.output_tokens)),
        "versions": _versions(),
        "metrics": {},
    }
    ensembles = (None if parts.with_ids is None else parts.with_ids.ensemble, parts.plain.ensemble)
    return Model(
        card,
        *ensembles,
        parts.weights,
        parts.lengths,
        parts.uses_history,
        groups.astype(np.uint32),
    )


def _made_of(one: Fitted) -> dict[str, Any]:
    weights = Weighing(one.ensemble.losses).weights
    return {
        "location_trees": one.place_trees,
        "scale_trees": one.spread_trees,
        "ngram_slope": round(one.ensemble.slope, 4),
        "weights_beside_history": weights.round(3).tolist(),
        "importance": one.importance,
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("batchpolicy", "numpy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
