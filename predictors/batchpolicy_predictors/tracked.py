"""A predictor held against the answers that come, and doubted as far as it fails."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PositiveInt,
    PrivateAttr,
    field_validator,
)
from typing_extensions import override

from batchpolicy.predictor import LEVELS, Arrivals, LengthDist, Predictor, within
from batchpolicy.registry import build_predictor, dump_predictor
from batchpolicy.requests import IntArray
from batchpolicy_predictors.histories import TenantHistory
from batchpolicy_predictors.rank_metrics import kendall_tau
from batchpolicy_predictors.samples import between

logger = logging.getLogger(__name__)

Inner = Annotated[Predictor, BeforeValidator(build_predictor), PlainSerializer(dump_predictor)]
"""A predictor as a parameter: in a file its name, or a mapping with name and parameters."""

REFIT = 16
"""New answers after which trust is measured anew."""
NINETY = int(np.flatnonzero(LEVELS == 0.9)[0])
MIDDLE = int(np.flatnonzero(LEVELS == 0.5)[0])
LOST, REGAINED = 0.1, 0.75
"""Trust below which a predictor is not asked any more, and above which it is again."""
_LEAST_COVERED, _NO_MORE_COVERED = 0.05, 0.20
"""Distance of the coverage from 0.9 up to which it is sound, and from which on it is none."""


@dataclass(slots=True)
class Record:
    """What was predicted of the latest answers of a class, and how they came out."""

    seen: deque[tuple[float, float, bool]]
    """Predicted median, tokens of the answer, whether it lay within the 0.9 quantile."""
    since: int
    """Answers since it last fell or recovered."""
    new: int = 0
    tau: float = float("nan")
    coverage: float = float("nan")
    trust: float = 1.0
    """Weight of the predictor against the history; 0 where it has fallen."""
    fallen: bool = field(default=False)


class Tracked(Predictor):
    """What another predictor says, shrunk towards the history of lengths as far as it fails.

    Of each class, the requests of one priority, the latest ``window`` answers tell the rank
    correlation (Kendall's tau-b) of its medians and the coverage of its 0.9 quantile. From
    ``tau_enough`` on, and with a coverage within 5 points of 0.9, it is taken at its word;
    between that and no correlation, or 20 points, its quantiles go towards those of
    ``tenant-history``. Below a tenth of trust nothing is said of that class, so that policies
    have their order without predictions among its requests, until it has earned three
    quarters again. A class of which few answers came yet trusts as far as the latest answers
    of all classes allow. Each fall and each recovery of a class is counted and logged; from
    one to the next all of the window has to be new.
    """

    inner: Inner
    """The predictor that is tracked: a name, or a mapping with its name and parameters."""
    window: Annotated[int, Field(ge=32, le=2048)] = 256
    """Answers of a class that count, the latest ones."""
    least_answers: Annotated[int, Field(ge=16, le=2048)] = 96
    """Answers before which a class trusts as all together do."""
    tau_enough: Annotated[float, Field(gt=0, le=1)] = 0.15
    """Correlation that is worth to be followed."""
    most_classes: PositiveInt = 64
    """Classes that are tracked for themselves; of more, the one not heard of for longest goes."""

    _history: TenantHistory = PrivateAttr(default_factory=TenantHistory)
    _all: Record = PrivateAttr()
    _classes: dict[int, Record] = PrivateAttr(default_factory=dict[int, Record])
    """By priority; the one heard of last comes last."""
    _counts: Counter[str] = PrivateAttr(default_factory=Counter[str])

    @field_validator("inner")
    @classmethod
    def _is_tracked_once(cls, inner: Predictor) -> Predictor:
        if isinstance(inner, Tracked):
            raise ValueError("expected a predictor that is not tracked already")
        return inner

    @override
    def model_post_init(self, context: object) -> None:
        self._all = self._record()

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        records = [self.record_of(priority) for priority in _classes(batch)]
        trust = np.array([record.trust for record in records], dtype=np.float64)
        fallen = np.array([record.fallen for record in records], dtype=np.bool_)
        if fallen.all():
            return LengthDist.nothing(len(batch))
        said = self.inner.predict(batch).quantiles
        if (trust < 1.0).any():
            history = self._history.quantiles_of(batch.tenant)
            said = within(between(history, said, trust[:, None]), batch.max_tokens).quantiles
            said[fallen] = np.nan
        return LengthDist(said)

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        if not len(batch):
            return
        # Asked now rather than remembered: of these answers it has not been told yet.
        said = self.inner.predict(batch).quantiles
        middle, covered = said[:, MIDDLE], output_tokens <= said[:, NINETY]
        for priority, row in zip(
            _classes(batch),
            zip(middle.tolist(), output_tokens.tolist(), covered.tolist(), strict=True),
            strict=True,
        ):
            if row[0] != row[0]:
                continue  # of this one it said nothing
            record = self._classes.pop(priority, None) or self._record()
            self._classes[priority] = record
            self._add(record, row, f"priority {priority}")
            self._add(self._all, row, "priorities of which few answers came")
        while len(self._classes) > self.most_classes:
            del self._classes[next(iter(self._classes))]
        self.inner.observe(batch, output_tokens)
        self._history.observe(batch, output_tokens)

    @override
    def counts(self) -> Mapping[str, int]:
        return {**self.inner.counts(), **self._counts}

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        # It asks anew about each answer.
        asked_again = self.inner.cost_s(answers, 0)
        own = 4e-6 + 2e-6 * rows + 4e-5 * answers
        return self.inner.cost_s(rows, answers) + asked_again + own

    def record_of(self, priority: int) -> Record:
        """What is known of the predictions for a class, or for all while that is little."""
        record = self._classes.get(priority)
        return self._all if record is None or self._is_new(record) else record

    def _is_new(self, record: Record) -> bool:
        return len(record.seen) < self.least_answers

    def _record(self) -> Record:
        return Record(deque(maxlen=self.window), since=self.window)

    def _add(self, record: Record, row: tuple[float, float, bool], whose: str) -> None:
        record.seen.append(row)
        record.new += 1
        record.since += 1
        if len(record.seen) < self.least_answers or record.new < REFIT:
            return
        record.new = 0
        predicted, truth, covered = np.array(record.seen, dtype=np.float64).T
        record.tau = kendall_tau(predicted, truth)
        record.coverage = float(covered.mean())
        off = abs(record.coverage - LEVELS[NINETY])
        # Equal predictions claim no order that could be wrong.
        followed = 1.0 if np.isnan(record.tau) else record.tau / self.tau_enough
        trust = min(
            followed,
            (_NO_MORE_COVERED - off) / (_NO_MORE_COVERED - _LEAST_COVERED),
        )
        trust = float(min(max(trust, 0.0), 1.0))
        self._turned(record, trust, whose)
        record.trust = 0.0 if record.fallen else trust

    def _turned(self, record: Record, trust: float, whose: str) -> None:
        """Note whether the predictor has lost, or regained, its say."""
        if record.fallen == (trust < (REGAINED if record.fallen else LOST)):
            return
        # A correlation of some hundred answers errs by 0.05: no turns to and fro.
        if record.since < self.window:
            return
        record.fallen, record.since = not record.fallen, 0
        if record is self._all and not any(map(self._is_new, self._classes.values())):
            return  # Each class speaks for itself.
        self._counts[f"predictor_{'fallbacks' if record.fallen else 'recoveries'}"] += 1
        logger.warning(
            "predictor %s %s for %s: tau %.2f, %.0f%% within its 0.9 quantile",
            type(self.inner).__name__,
            "fails, and nothing is said" if record.fallen else "is followed again",
            whose,
            record.tau,
            100.0 * record.coverage,
        )


def _classes(batch: Arrivals) -> list[int]:
    """The priority of each request; where none is known all are of one class."""
    return [0] * len(batch) if batch.priority is None else batch.priority.tolist()


class _OfBoth:
    """What an object requires is what its inner predictor does."""

    def __get__(self, predictor: Tracked | None, cls: type[Tracked]) -> frozenset[str]:
        return frozenset() if predictor is None else predictor.inner.requires


# Not in the class body, where the base class's is a plain value.
Tracked.requires = cast("frozenset[str]", cast(Any, _OfBoth()))
