"""A model, or a predictor by its name, beside those that know nothing of the prompt."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from batchpolicy.config import PredictorSpec
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.predictor import LEVELS, TRUTH, Predictor
from batchpolicy.requests import FloatArray
from batchpolicy_predictors.gradient_boosting import GradientBoosting
from batchpolicy_predictors.histories import TenantHistory
from batchpolicy_predictors.model_file import read_model
from batchpolicy_predictors.plain import Constant
from batchpolicy_predictors.training.examples import Examples
from batchpolicy_predictors.training.fit import Progress
from batchpolicy_predictors.training.judging import (
    Quality,
    asked_in_turn,
    quality,
    silences,
    tell,
)


@dataclass(frozen=True, slots=True)
class Judged:
    """Predictors side by side on the same rows."""

    title: str
    rows: int
    by_predictor: Mapping[str, Quality]
    note: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "title": self.title,
            "rows": self.rows,
            "note": self.note,
            "levels": LEVELS.tolist(),
            "predictors": {name: one.document() for name, one in self.by_predictor.items()},
        }


def judged_after_training(path: Path, fitted: Examples, rows: Examples) -> Judged:
    """A model on rows that it was not fitted to; histories have heard of those that it was."""
    typical = max(1, round(float(np.median(fitted.output_tokens))))
    asked: dict[str, Predictor] = {
        "the model": GradientBoosting(model=path),
        "without token ids": GradientBoosting(model=path),
        "tenant-history": TenantHistory(),
        f"constant, {typical} tokens": Constant(output_tokens=typical),
    }
    for predictor in asked.values():
        tell(predictor, fitted)
    return _judged("rows held out of the training", asked, rows)


def judged_model(path: Path, rows: Examples, progress: Progress) -> Sequence[Judged]:
    """A model on the rows of a file: those with prompts that it was not trained on, then the rest.

    Nothing has seen any of the rows before. Rows of the very files of the training count
    only where they were held out.
    """
    model = read_model(path)
    card = model.card
    seen = np.isin(rows.group_hashes(), model.groups)
    same = {one["sha256"] for one in card["data"]} >= {one.sha256 for one in rows.sources}
    parts = [("prompts that it was not trained on", ~seen)]
    if not same:
        parts.append(("prompts that it was trained on, with other answers", seen))
    found: list[Judged] = []
    for title, which in parts:
        some = rows.take(np.flatnonzero(which))
        if not len(some):
            continue
        progress(f"asking about {len(some):,} rows: {title}")
        typical = max(1, round(card.get("typical_tokens", 256)))
        asked: dict[str, Predictor] = {
            "the model": GradientBoosting(model=path),
            "as trained, not corrected": GradientBoosting(model=path, online=False),
            "without token ids": GradientBoosting(model=path),
            "tenant-history": TenantHistory(),
            f"constant, {typical} tokens": Constant(output_tokens=typical),
        }
        foreign = rows.arrivals.prompt_ids is not None and (
            rows.arrivals.id_space != model.id_space
        )
        note = (
            f"The token ids of these rows ({rows.arrivals.id_space}) are not those of its "
            f"training ({model.id_space}), so that they count for nothing."
            if foreign
            else ""
        )
        found.append(_judged(title, asked, some, note))
    if not found:
        raise ConfigError(
            f"{rows.name}: all its prompts were trained on, and nothing was held out."
        )
    return found


def made_by_name(name: str) -> Predictor:
    """An installed predictor, or ``module:Class``, with its defaults."""
    return PredictorSpec(name=name).build()


def judged_by_name(
    name: str, made: Predictor, rows: Examples, progress: Progress
) -> Sequence[Judged]:
    """A predictor on the rows of a file, from a cold start."""
    progress(f"asking {name} about {len(rows):,} rows")
    typical = max(1, round(float(np.median(rows.output_tokens))))
    if TRUTH in made.requires:
        rows = replace(rows, arrivals=replace(rows.arrivals, truth=rows.output_tokens))
    asked: dict[str, Predictor] = {name: made}
    asked.setdefault("tenant-history", TenantHistory())
    asked[f"constant, {typical} tokens"] = Constant(output_tokens=typical)
    return [_judged("all rows, one after another", asked, rows)]


def _judged(title: str, asked: Mapping[str, Predictor], rows: Examples, note: str = "") -> Judged:
    found: dict[str, Quality] = {}
    for name, predictor in asked.items():
        arrivals = rows.arrivals
        if name == "without token ids":
            if arrivals.prompt_ids is None:
                continue
            arrivals = replace(arrivals, prompt_ids=None)
        fixed = isinstance(predictor, GradientBoosting) and not predictor.online
        some = replace(rows, arrivals=arrivals)
        try:
            said: FloatArray = asked_in_turn(predictor, some, told=not fixed)
        except BatchPolicyError:
            raise
        except (Exception, SystemExit) as fault:
            raise BatchPolicyError(_failed(name, fault)) from fault
        found[name] = quality(said, rows.output_tokens)
    notes = [note] if note else []
    return Judged(title, len(rows), found, " ".join([*notes, *silences(found)]))


def _failed(name: str, fault: BaseException) -> str:
    last = traceback.extract_tb(fault.__traceback__)[-1]
    return (
        f"predictor {name} failed: {type(fault).__name__}: {fault} "
        f"({Path(last.filename).name}, line {last.lineno}). "
        "batchpolicy.testing.check_predictor holds it to what every predictor has to do."
    )
