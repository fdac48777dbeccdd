"""Requests as columns: what a policy reads.

Times are seconds on the clock of ``Step.now_s``; an absent target or limit is
``inf``, an instant that has not come yet is ``NaN``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.integer[Any]]
Column = npt.NDArray[Any]


class Status(IntEnum):
    """Where a request is in its life."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    ABORTED = 3
    EXPIRED = 4
    REFUSED = 5


COLUMNS: Mapping[str, tuple[str, float]] = {
    "slot": ("i8", -1),
    "seq": ("i8", -1),
    "arrival_s": ("f8", 0.0),
    "priority": ("i8", 0),
    "tenant": ("i8", -1),
    "weight": ("f8", 1.0),
    "session": ("i8", -1),
    "lora": ("i8", -1),
    "turn": ("i8", 0),
    "prompt_tokens": ("i8", 0),
    "max_tokens": ("i8", 1),
    "ttft_slo_s": ("f8", np.inf),
    "tpot_slo_s": ("f8", np.inf),
    "deadline_s": ("f8", np.inf),
    "queue_ttl_s": ("f8", np.inf),
    "ready": ("?", True),
    "cached_tokens": ("i8", 0),
    "need_kv_blocks": ("i8", 0),
    "computed_tokens": ("i8", 0),
    "output_tokens": ("i8", 0),
    "kv_blocks": ("i8", 0),
    "preemptions": ("i8", 0),
    "overtakes": ("i8", 0),
    "status": ("i8", int(Status.WAITING)),
    "first_scheduled_s": ("f8", np.nan),
    "first_token_s": ("f8", np.nan),
    "last_token_s": ("f8", np.nan),
    "predicted_output_tokens": ("f8", np.nan),
    "predicted_output_high": ("f8", np.nan),
}
"""Name, dtype and default of every stored column with one value a row."""

QUANTILES = "output_quantiles"
"""The column that has nine."""

NEVER_STARTED = frozenset(
    {
        "computed_tokens",
        "cached_tokens",
        "output_tokens",
        "preemptions",
        "first_scheduled_s",
        "first_token_s",
    }
)
"""Columns that are at their default in every row that has never run."""


class Requests:
    """Read-only columns of shape ``(n,)``, one row a request, gathered when read.

    A view: rows are numbers into the tables of the runner and the columns
    show what the tables hold now. ``take`` narrows a view without copying.
    """

    __slots__ = ("_columns", "_defaults", "_gathered", "_ids", "_now_s", "_passed", "_rows")

    def __init__(
        self,
        columns: Mapping[str, Column],
        rows: npt.NDArray[np.intp],
        ids: Sequence[str],
        now_s: float,
        passed: Sequence[int] = (),
        defaults: frozenset[str] = frozenset(),
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._ids = ids
        self._now_s = now_s
        self._passed = passed
        self._defaults = defaults
        self._gathered: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: IndexArray | BoolArray) -> Requests:
        """The given rows of this view, by number or by mask."""
        return Requests(
            self._columns, self._rows[rows], self._ids, self._now_s, self._passed, self._defaults
        )

    def at_default(self, *names: str) -> bool:
        """Whether these columns are known to hold nothing but their defaults.

        Costs nothing, so that what nobody asks for need not be looked at row by row;
        False says nothing.
        """
        return self._defaults.issuperset(names)

    def _column(self, name: str) -> Column:
        found = self._gathered.get(name)
        if found is None:
            found = self._columns[name].take(self._rows, axis=0)
            found.setflags(write=False)
            self._gathered[name] = found
        return found

    @property
    def request_id(self) -> list[str]:
        """Ids, for messages."""
        rows: list[int] = self._rows.tolist()
        return [self._ids[row] for row in rows]

    @property
    def slot(self) -> IntArray:
        """Dense id, kept for life and reused afterwards: the index of a ``StateArray``."""
        return self._column("slot")

    @property
    def seq(self) -> IntArray:
        """Submission number; breaks ties."""
        return self._column("seq")

    @property
    def arrival_s(self) -> FloatArray:
        """First arrival; requeueing never changes it."""
        return self._column("arrival_s")

    @property
    def priority(self) -> IntArray:
        """Any integer; lower is more urgent."""
        return self._column("priority")

    @property
    def tenant(self) -> IntArray:
        """Dense code of the tenant's name, -1 for none."""
        return self._column("tenant")

    @property
    def weight(self) -> FloatArray:
        """The tenant's share, 1 by default."""
        return self._column("weight")

    @property
    def session(self) -> IntArray:
        """Dense code of the session's name, -1 for none."""
        return self._column("session")

    @property
    def lora(self) -> IntArray:
        """Dense code of the LoRA adapter's name, -1 for none."""
        return self._column("lora")

    @property
    def turn(self) -> IntArray:
        """Earlier requests of the same session."""
        return self._column("turn")

    @property
    def prompt_tokens(self) -> IntArray:
        """Tokens of the prompt."""
        return self._column("prompt_tokens")

    @property
    def max_tokens(self) -> IntArray:
        """Most output tokens the client asked for: a ceiling, not a prediction."""
        return self._column("max_tokens")

    @property
    def ttft_slo_s(self) -> FloatArray:
        """Target for the time to first token; ``inf`` without one."""
        return self._column("ttft_slo_s")

    @property
    def tpot_slo_s(self) -> FloatArray:
        """Target for the mean time per output token; ``inf`` without one."""
        return self._column("tpot_slo_s")

    @property
    def deadline_s(self) -> FloatArray:
        """Absolute time by which the answer should be complete; ``inf`` without one."""
        return self._column("deadline_s")

    @property
    def queue_ttl_s(self) -> FloatArray:
        """Longest wait before a first start; ``inf`` without a limit."""
        return self._column("queue_ttl_s")

    @property
    def ready(self) -> BoolArray:
        """Could start now; false while a grammar compiles or a transfer runs."""
        return self._column("ready")

    @property
    def cached_tokens(self) -> IntArray:
        """Prompt tokens found in the prefix cache at the last probe; 0 before."""
        return self._column("cached_tokens")

    @property
    def need_kv_blocks(self) -> IntArray:
        """KV blocks that starting the whole prompt takes, at the last probe."""
        return self._column("need_kv_blocks")

    @property
    def computed_tokens(self) -> IntArray:
        """Tokens whose KV is present or in flight, cache hits included."""
        return self._column("computed_tokens")

    @property
    def output_tokens(self) -> IntArray:
        """Tokens delivered."""
        return self._column("output_tokens")

    @property
    def kv_blocks(self) -> IntArray:
        """KV blocks that displacing the request would free."""
        return self._column("kv_blocks")

    @property
    def preemptions(self) -> IntArray:
        """How often the request lost its KV."""
        return self._column("preemptions")

    @property
    def overtakes(self) -> IntArray:
        """Later arrivals admitted before this one was for the first time, or so far."""
        stored = self._column("overtakes")
        if not self._passed:
            return stored
        late = len(self._passed) - np.searchsorted(self._passed, self.seq, side="right")
        return stored + late * (self.ready & np.isnan(self.first_scheduled_s))

    @property
    def status(self) -> IntArray:
        """A ``Status``."""
        return self._column("status")

    @property
    def first_scheduled_s(self) -> FloatArray:
        """When it first ran; ``NaN`` until then."""
        return self._column("first_scheduled_s")

    @property
    def first_token_s(self) -> FloatArray:
        """When the first token came out; ``NaN`` until then."""
        return self._column("first_token_s")

    @property
    def last_token_s(self) -> FloatArray:
        """When the latest token came out; ``NaN`` until then."""
        return self._column("last_token_s")

    @property
    def predicted_output_tokens(self) -> FloatArray:
        """Predicted median of the whole output; ``NaN`` without a prediction.

        A predictor's is given what is out when somebody to displace is sought, else what was
        out up to 16 steps before; a request's own stays.
        """
        return self._column("predicted_output_tokens")

    @property
    def predicted_output_high(self) -> FloatArray:
        """Quantile ``memory.quantile`` of the whole output; ``NaN`` without a predictor."""
        return self._column("predicted_output_high")

    @property
    def output_quantiles(self) -> FloatArray:
        """Predicted quantiles of the whole output at ``predictor.LEVELS``, shape ``(n, 9)``.

        As predicted at the arrival, and ``NaN`` without a predictor.
        """
        return self._column(QUANTILES)

    @property
    def prefill_tokens(self) -> IntArray:
        """Tokens to compute before the next one comes out, recomputation included.

        0 for a request that decodes. Cache hits count as computed.
        """
        if self.at_default("output_tokens", "computed_tokens", "cached_tokens"):
            return self.prompt_tokens
        out = self.output_tokens
        left = self.prompt_tokens + out
        left -= np.maximum(self.computed_tokens, self.cached_tokens)
        np.maximum(left, 0, out=left)
        if out.any():
            left[(out > 0) & (left == 1)] = 0
        return left

    @property
    def remaining_output_tokens(self) -> FloatArray:
        """Predicted output still to come, without a prediction up to ``max_tokens``; >= 1."""
        predicted = self.predicted_output_tokens
        total = np.where(np.isnan(predicted), self.max_tokens, predicted)
        return np.maximum(total - self.output_tokens, 1.0)

    @property
    def first_token_due_s(self) -> FloatArray:
        """Latest first token that meets the TTFT target; ``inf`` without one."""
        return self.arrival_s + self.ttft_slo_s

    @property
    def next_token_due_s(self) -> FloatArray:
        """Latest next token that meets the TTFT or, after the first, the TPOT target.

        TPOT is a mean, so token k + 1 is due k targets after the first one.
        """
        if self.at_default("first_token_s"):
            return self.first_token_due_s
        first_s = self.first_token_s
        started = first_s == first_s
        if not started.any():
            return self.first_token_due_s
        with np.errstate(invalid="ignore"):
            running = first_s + np.maximum(self.output_tokens, 1) * self.tpot_slo_s
        return np.where(started, running, self.first_token_due_s)

    @property
    def queue_s(self) -> FloatArray:
        """Wait before it first ran, or so far."""
        started = np.where(np.isnan(self.first_scheduled_s), self._now_s, self.first_scheduled_s)
        return started - self.arrival_s
