"""How much is asked of an engine, and what for, from what a policy is told."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from batchpolicy.policy import Step, Work
from batchpolicy.requests import Requests
from batchpolicy.state import StateArray


class Load(NamedTuple):
    """What was asked of an engine lately, recent time counting most."""

    load: float
    """How many times over the live requests fill the engine: its seats, or its KV cache if
    they fill more of that. Above 1 some have to wait."""
    prompt_frac: float
    """Share of prompts among the tokens computed, from 0 to 1."""
    urgent_frac: float
    """Share of urgent ones among the live requests, from 0 to 1."""


class LoadMeter:
    """Averages over about ``average_s``: of age ``a``, a moment counts ``exp(-a / average_s)``.

    *Live* is who waits or runs. The requests that live say how far the engine is behind as
    well as how busy it is, with no cost of steps and no prediction; the share of time in which
    steps run is close to 1 long before an engine is full. Tokens of live requests are their
    prompts and what came out so far, those found in a prefix cache included.

    Time is that of the steps to be planned, and what came between two of them is added up in
    whole numbers, so that events told singly or merged give the same averages.
    """

    def __init__(self) -> None:
        self._at_s = math.nan
        self._tokens_of, self._urgent_of = StateArray(), StateArray()
        """Of each slot that lives."""
        self._requests = self._urgent = self._tokens = 0
        """Live now."""
        self._prefilled = self._put_out = 0
        """Tokens computed since the averages were moved."""
        self._weight = 0.0
        self._mean_requests = self._mean_urgent = self._mean_tokens = 0.0
        self._recent_prefilled = self._recent_out = 0.0

    def advance(self, now_s: float, average_s: float) -> bool:
        """Move the averages to ``now_s``; false if they stand there already."""
        if math.isnan(self._at_s):
            self._at_s = now_s
        passed_s = now_s - self._at_s
        if passed_s <= 0.0:
            return False
        self._at_s = now_s
        old = math.exp(-passed_s / average_s)
        new = 1.0 - old
        self._weight = old * self._weight + new
        self._mean_requests = old * self._mean_requests + new * self._requests
        self._mean_urgent = old * self._mean_urgent + new * self._urgent
        self._mean_tokens = old * self._mean_tokens + new * self._tokens
        self._recent_prefilled = old * (self._recent_prefilled + self._prefilled)
        self._recent_out = old * (self._recent_out + self._put_out)
        self._prefilled = self._put_out = 0
        return True

    def load(self, step: Step) -> Load:
        """The averages, against what the engine holds; zeros before any time has passed."""
        seats = self._weight * step.max_running
        kv_tokens = self._weight * step.total_kv_blocks * step.kv_block_tokens
        computed = self._recent_prefilled + self._recent_out
        return Load(
            max(_share(self._mean_requests, seats), _share(self._mean_tokens, kv_tokens)),
            _share(self._recent_prefilled, computed),
            _share(self._mean_urgent, self._mean_requests),
        )

    def arrived(self, rows: Requests, urgent_up_to: int) -> None:
        """New requests, those urgent whose priority number is at most ``urgent_up_to``."""
        slots, prompt, urgent = rows.slot, rows.prompt_tokens, rows.priority <= urgent_up_to
        self._requests += len(rows)
        self._urgent += int(urgent.sum())
        self._tokens += int(prompt.sum())
        self._tokens_of[slots] = prompt.astype(np.float64)
        self._urgent_of[slots] = urgent.astype(np.float64)

    def computed(self, rows: Requests, work: Work) -> None:
        """Results came back."""
        out = int(work.output_tokens.sum())
        self._tokens += out
        self._put_out += out
        self._prefilled += int(work.prefill_tokens.sum())
        self._tokens_of.add(rows.slot, work.output_tokens.astype(np.float64))

    def finished(self, rows: Requests) -> None:
        """They live no more."""
        slots = rows.slot
        self._requests -= len(rows)
        # What was told of each, so that nothing is left however it ended.
        self._urgent -= int(self._urgent_of[slots].sum())
        self._tokens -= int(self._tokens_of[slots].sum())
        self._tokens_of[slots] = self._urgent_of[slots] = 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 0.0
