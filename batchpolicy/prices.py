"""What a request takes of a busy engine: shadow prices of step time, KV cache and seats."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import PositiveFloat, PrivateAttr

from batchpolicy.component import Component
from batchpolicy.policy import Step, Work
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.tune import Tune

FLOOR = 0.01
"""Price of what is not scarce at all, so that nothing is for nothing."""


class Prices(Component):
    """Shadow prices by recent use: near 0 for what is idle, 1 for what is used up.

    A price is the fourth power of the part in use, 0.07 at a half and 0.66 at nine
    tenths. A request is charged, in steps of the whole engine,

        time * tokens / token budget + kv * token-steps / KV cache + seats * steps / seats

    where tokens are those still to compute, a step's time being shared by its tokens, and
    token-steps the KV that it holds, summed over the steps of its life.

    References
    ----------
    S. Gao et al., "Apt-Serve: Adaptive Request Scheduling on Hybrid Cache for Scalable LLM
    Inference Serving", SIGMOD 2025, for benefit by what is held.
    """

    recent_steps: Annotated[PositiveFloat, Tune(10.0, 10_000.0, log=True)] = 200.0
    """Steps over which use is averaged."""

    _index: int | None = PrivateAttr(default=None)
    """Step of the last sample."""
    _computed: float = PrivateAttr(default=0.0)
    """Tokens since then."""
    _time: float = PrivateAttr(default=0.0)
    """Part of the token budget that is in use, recently; those of KV and seats follow."""
    _kv: float = PrivateAttr(default=0.0)
    _seats: float = PrivateAttr(default=0.0)
    _outputs: float = PrivateAttr(default=0.0)
    """Output tokens of all requests that ended, and their number."""
    _ended: int = PrivateAttr(default=0)

    @property
    def time(self) -> float:
        """Price of step time."""
        return _price(self._time)

    @property
    def kv(self) -> float:
        """Price of KV cache."""
        return _price(self._kv)

    @property
    def seats(self) -> float:
        """Price of seats."""
        return _price(self._seats)

    def cost(self, requests: Requests, step: Step) -> FloatArray:
        """What each request takes to its end, in steps of the whole engine; above 0."""
        out = requests.output_tokens
        predicted = requests.predicted_output_tokens
        # Without a prediction, as long as answers are on average.
        typical = self._outputs / self._ended if self._ended else 0.0
        total = np.where(predicted > 0.0, predicted, typical)
        to_come: FloatArray = np.maximum(np.minimum(total, requests.max_tokens) - out, 1.0)
        prefill = requests.prefill_tokens
        held = requests.prompt_tokens + out
        token_steps = to_come * (held + 0.5 * to_come)
        steps = to_come + prefill / step.max_token_budget
        pool = step.total_kv_blocks * step.kv_block_tokens
        cost: FloatArray = (prefill + to_come) * (self.time / step.max_token_budget)
        cost += token_steps * (self.kv / pool)
        cost += steps * (self.seats / step.max_running)
        return cost

    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        """Results came back: what is in use is seen once a step."""
        if not len(rows):
            return
        if step.index != self._index:
            self._see(step)
        self._computed += float(work.prefill_tokens.sum() + work.output_tokens.sum())

    def on_finished(self, rows: Requests) -> None:
        """Requests ended: so long are answers."""
        self._outputs += float(rows.output_tokens.sum())
        self._ended += int((rows.output_tokens > 0).sum())

    def _see(self, step: Step) -> None:
        passed = 1 if self._index is None else step.index - self._index
        computed = self._computed / (passed * step.max_token_budget)
        pool = step.total_kv_blocks * step.kv_block_tokens
        held = float(step.running.computed_tokens.sum()) / pool
        # No power and no logarithm, which need not be equal on every host.
        new = passed / (self.recent_steps + passed)
        self._time += new * (min(computed, 1.0) - self._time)
        self._kv += new * (min(held, 1.0) - self._kv)
        self._seats += new * (len(step.running) / step.max_running - self._seats)
        self._index, self._computed = step.index, 0.0


def _price(use: float) -> float:
    square = use * use
    return FLOOR + (1.0 - FLOOR) * square * square
