"""The predictor interface: how many tokens an answer will have, as a distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from batchpolicy.component import Component
from batchpolicy.requests import BoolArray, FloatArray, IndexArray, IntArray

LEVELS: FloatArray = np.array([0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99])
"""Levels of the quantiles; the last one is high, since memory is short where answers are long."""

TRUTH = "truth"
"""Capability of replays: they know how many tokens each answer has."""


@dataclass(frozen=True, slots=True)
class LengthDist:
    """Total output tokens of each request, shape ``(n,)``, as quantiles at ``LEVELS``.

    Between two levels the quantile function is linear, outside of them constant.
    """

    quantiles: FloatArray
    """Shape ``(n, 9)``, each row ascending, at least 1; or all NaN, where nothing is said."""

    def __len__(self) -> int:
        return len(self.quantiles)

    @classmethod
    def exactly(cls, tokens: npt.ArrayLike) -> LengthDist:
        """No doubt: so many tokens each."""
        return cls(np.repeat(np.asarray(tokens, dtype=np.float64)[:, None], len(LEVELS), axis=1))

    @classmethod
    def nothing(cls, n: int) -> LengthDist:
        """Not a word on any of ``n`` requests: they go as if there were no predictor."""
        return cls(np.full((n, len(LEVELS)), np.nan))

    @property
    def known(self) -> BoolArray:
        """Rows of which something is said, shape ``(n,)``."""
        return ~np.isnan(self.quantiles[:, 0])

    def mean(self) -> FloatArray:
        """Mean of each row, shape ``(n,)``."""
        grid = np.concatenate([[0.0], LEVELS, [1.0]])
        values = self.quantile(grid)
        mean: FloatArray = ((values[:, 1:] + values[:, :-1]) / 2.0) @ np.diff(grid)
        return mean

    def quantile(self, levels: float | FloatArray) -> FloatArray:
        """Quantiles at one level, shape ``(n,)``, or at ``k`` levels, shape ``(n, k)``."""
        wanted = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        found = _at(self.quantiles, np.broadcast_to(wanted, (len(self), len(wanted))))
        return found[:, 0] if np.ndim(levels) == 0 else found

    def given(self, age: IntArray | FloatArray) -> LengthDist:
        """Their distribution once more than ``age`` tokens, shape ``(n,)``, are out.

        A request that has outlived its distribution is expected to put out as much again
        as it has (the median), since its age is all that is known.
        """
        return LengthDist(self.given_at(age, LEVELS))

    def given_at(self, age: IntArray | FloatArray, levels: FloatArray) -> FloatArray:
        """Quantiles at ``levels`` once more than ``age`` tokens are out, shape ``(n, k)``."""
        out = np.asarray(age, dtype=np.float64)
        passed = self._level_of(out)
        left = 1.0 - passed
        found = _at(self.quantiles, passed[:, None] + left[:, None] * levels)
        outlived = out >= self.quantiles[:, -1]
        if outlived.any():
            found[outlived] = as_much_again(out[outlived], levels)
        return np.maximum(found, out[:, None] + 1.0)

    def _level_of(self, tokens: FloatArray) -> FloatArray:
        """Part of each distribution that is not above ``tokens``."""
        q = self.quantiles
        above = (q <= tokens[:, None]).sum(axis=1)
        high = np.minimum(above, len(LEVELS) - 1)
        low = np.maximum(high - 1, 0)
        rows = np.arange(len(q))
        step = q[rows, high] - q[rows, low]
        part = np.where(step > 0, (tokens - q[rows, low]) / np.where(step > 0, step, 1.0), 0.0)
        level = LEVELS[low] + np.clip(part, 0.0, 1.0) * (LEVELS[high] - LEVELS[low])
        return np.where(above == 0, 0.0, np.where(above == len(LEVELS), LEVELS[-1], level))


def as_much_again(age: FloatArray, levels: FloatArray) -> FloatArray:
    """Quantiles of a total of which only the age is known, shape ``(n, k)``.

    The chance to go on beyond ``x`` is ``age / x``, whatever the scale, so that the median
    is as much again as there is.
    """
    return np.maximum(age, 1.0)[:, None] / (1.0 - np.minimum(levels, 0.99))


ENGINE_IDS = "engine"
"""Token ids as the engine's own tokenizer makes them."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests whose lengths are to be predicted; columns of shape ``(n,)``.

    What is not known is ``None``, and ``NaN``, -1 or empty for a single request: every
    predictor copes without.
    """

    request_id: list[str]
    prompt_tokens: IntArray
    max_tokens: IntArray
    tenant: list[str]
    truth: IntArray | None = None
    """Tokens of the whole answers: only for predictors that require the truth, in replays."""
    prompt_ids: Sequence[Sequence[int]] | None = None
    """Token ids of each prompt; predictors look at both ends. Not kept beyond the call."""
    id_space: str = ENGINE_IDS
    """What the ids mean. A predictor trained on others leaves them alone."""
    temperature: FloatArray | None = None
    turn: IntArray | None = None
    """Earlier requests of the session."""
    hour: FloatArray | None = None
    """Hour of the day at the arrival, 0 to 24, UTC; told, since no predictor reads a clock."""
    priority: IntArray | None = None
    """The class of each: any integer, lower is more urgent."""

    def __len__(self) -> int:
        return len(self.request_id)

    def take(self, rows: IndexArray) -> Arrivals:
        """The requests with these numbers, in this order."""
        which: list[int] = rows.tolist()
        ids = self.prompt_ids
        return replace(
            self,
            request_id=[self.request_id[i] for i in which],
            prompt_tokens=self.prompt_tokens[rows],
            max_tokens=self.max_tokens[rows],
            tenant=[self.tenant[i] for i in which],
            truth=None if self.truth is None else self.truth[rows],
            prompt_ids=None if ids is None else [ids[i] for i in which],
            temperature=None if self.temperature is None else self.temperature[rows],
            turn=None if self.turn is None else self.turn[rows],
            hour=None if self.hour is None else self.hour[rows],
            priority=None if self.priority is None else self.priority[rows],
        )


class Predictor(Component, ABC):
    """Predicts how many tokens answers will have.

    Parameters are fields, state lives in private attributes that only ``observe``
    changes. It is asked on one rank, outside of any plan; what it says reaches the
    tables with a tick.
    """

    requires: ClassVar[frozenset[str]] = frozenset()
    """Capabilities without which it is refused at start, such as ``truth``."""

    as_told: ClassVar[bool] = False
    """What it says is meant, as a bound or as the truth; else admission holds it against the
    answers that come, and corrects its bias and its spread."""

    @abstractmethod
    def predict(self, batch: Arrivals) -> LengthDist:
        """Total output tokens of each request, at least 1 and at most its ``max_tokens``.

        A row of NaN says nothing: admission sizes that request as without a predictor, by
        earlier answers. Orders by length count it as predicted requests are on average, at
        most as its ceiling; where nothing is said of any they go without output.

        The prediction for a request depends on that request and on what was observed,
        never on the others of the batch.
        """

    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        """Answers are complete, with so many tokens each, shape ``(n,)``.

        They come in the order in which they ended, some never; state stays bounded.
        """

    def counts(self) -> Mapping[str, int]:
        """Counters of its own, such as how often it fell back; they only grow.

        They join the runner's, with ``predictor_`` before names that do not begin so.
        """
        return {}

    def cost_s(self, rows: int, answers: int) -> float:
        """Seconds of one core in which it predicts ``rows`` and hears of ``answers``.

        Stated rather than measured, so that two replays are equal: they let so much time
        pass before the predictions arrive. Servers wait for nothing and do not ask.
        """
        return 1e-4 * (rows > 0) + 1e-5 * rows + 1e-4 * answers


def within(quantiles: FloatArray, max_tokens: IntArray) -> LengthDist:
    """The distribution with every quantile between 1 and the request's ``max_tokens``."""
    return LengthDist(np.minimum(np.maximum(quantiles, 1.0), max_tokens[:, None].astype(float)))


def _at(quantiles: FloatArray, levels: FloatArray) -> FloatArray:
    """Quantiles at levels of each row's own, both of shape ``(n, ...)``."""
    high = np.clip(np.searchsorted(LEVELS, levels), 1, len(LEVELS) - 1)
    low = high - 1
    part = np.clip((levels - LEVELS[low]) / (LEVELS[high] - LEVELS[low]), 0.0, 1.0)
    below = np.take_along_axis(quantiles, low, axis=1)
    above = np.take_along_axis(quantiles, high, axis=1)
    # In this form equal ends give exactly their value, and rounding never leaves them.
    return np.minimum(below + part * (above - below), above)
