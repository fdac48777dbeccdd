"""Limits that follow what running answers can spare, and what the KV cache holds."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from batchpolicy.policy import Limits
from batchpolicy.requests import FloatArray, Requests
from batchpolicy.runner.batch import Batch
from batchpolicy.runner.facts import EngineFacts
from batchpolicy.runner.step_times import CorrectedCost, LearnedCost, MeasuredCost
from batchpolicy.step_cost import StepShape

AIM = 0.98
"""Part of the time allowed that a step is planned for: predictions err."""
FEW_BLOCKS = 5
"""Blocks below which a rise may be none of the load."""
SHARE = 0.5
"""Part of the time that an answer has gained or lost which one step spends or makes good."""
LEAST, MOST = 0.8, 2.0
"""Shortest and longest step that is planned for, as multiples of the target. Answers that are
late get steps a little shorter than the target, not the shortest possible: prompts go on. Those
that are early are stalled for two tokens' time at most."""
CALM = 0.9
"""Part of the target below which decodes have to fall before seats are filled again."""
FEWER = 0.9
"""What is left of the seats after a preemption for want of blocks."""
MORE_STEPS = 16
"""Steps without such a preemption, after which there is one more, if all are taken."""
LOOK_STEPS = 8
"""Steps after which it looks at an unchanged batch again."""


class LimitController:
    """Sets the token budget, the chunk of a prompt and the seats of each step.

    *Tokens*: all decodes, and of prompts as many as the step may have beside them to end
    within the least slack of a running answer: the time until its next token is due, by its
    own TPOT target or else ``target_s``. How long steps take is learned from them, or
    taken from the engine's ``cost`` and corrected by them. *Seats* stay as many as are taken
    while decodes alone take longer than the targets; after a preemption for want of KV
    blocks they are cut, and come back one by one. Without decodes nothing is limited.

    References
    ----------
    "Niyama / QoServe", arXiv 2503.22562, and "AccelGen", arXiv 2503.13737: the largest chunk
    within the slack of the running requests. "Optimizing LLM Inference Throughput via
    Memory-aware and SLA-constrained Dynamic Batching", arXiv 2503.05248: seats from latency.
    """

    def __init__(self, engine: EngineFacts, target_s: float, counters: Counter[str]) -> None:
        self._engine = engine
        self._target_s = target_s
        self._counters = counters
        self._times: MeasuredCost = (
            LearnedCost() if engine.cost is None else CorrectedCost(engine.cost)
        )
        self._planned: deque[StepShape | None] = deque(maxlen=1 + engine.lag_steps)
        """Shapes of the steps whose results are to come, without their prompts."""
        self._prefill: int | None = None
        """Prompt tokens of a step; None before anything was limited."""
        self._next_s = 0.0
        """How long the step planned last will take, where it is in flight at the next plan."""
        self._full = False
        """Decodes alone take too long."""
        self._kv_seats: int | None = None
        """Seats that the KV cache is known to hold; None for all."""
        self._quiet_steps = 0
        self._seen, self._since = -1, 0
        """Changes of the ledger at the last look, if all decoded then, and steps since."""
        self._limits = Limits()
        self._steps = self._tokens = 0

    def limits(self, running: Requests, batch: Batch, now_s: float, changes: int) -> Limits:
        """Limits of the step that is being planned; None for what it leaves alone.

        ``changes`` tells whether requests came or went since the last step.
        """
        if self._seen == changes and not batch.mid_prefill and self._since < LOOK_STEPS:
            # Nobody has started or will, before somebody comes or goes.
            self._since += 1
            self._planned.append(None)
            return self._limits
        self._quiet_steps += 1 + self._since
        self._seen, self._since = -1 if batch.mid_prefill else changes, 0
        batch.settle()
        decoding = running.prefill_tokens == 0
        computed = running.computed_tokens
        shape = StepShape(
            prefill_context=int(computed[~decoding].max(initial=0)),
            decodes=int(np.count_nonzero(decoding)),
            decode_context=int(computed[decoding].sum()),
            sequences=int(np.count_nonzero(decoding)),
        )
        self._learn(batch, shape)
        self._planned.append(shape)
        seats = self._kv_seats_of(len(running))
        if not shape.decodes:
            self._full = False
            self._limits = Limits(seats)
            return self._limits
        rows = running.take(decoding)
        targets_s = np.where(np.isfinite(rows.tpot_slo_s), rows.tpot_slo_s, self._target_s)
        tokens = self._prompt_tokens(rows, targets_s, shape, now_s)
        if self._decodes_too_long(shape, float(targets_s.min())):
            seats = len(running) if seats is None else min(seats, len(running))
        charged = self._engine.decode_tokens if self._engine.mixed else 0
        budget = charged * shape.decodes + tokens
        self._tell(min(budget, self._engine.max_token_budget))
        self._limits = Limits(seats, budget, tokens)
        return self._limits

    def short_of_blocks(self, running: int) -> None:
        """Requests lost their KV because others had none; so many are left."""
        self._kv_seats = max(int(FEWER * min(running, self._kv_seats or running)), 1)
        self._quiet_steps = 0
        self._counters["limits_lowered"] += 1
        self._seen = -1

    def _learn(self, batch: Batch, now: StepShape) -> None:
        measured = batch.take_measured()
        planned = self._planned[0] if len(self._planned) == self._planned.maxlen else None
        if measured is None or not batch.step_s > 0.0:
            return
        prefill_tokens, decodes = measured
        if not prefill_tokens:
            # Each of those has a token more by now, which is nothing.
            planned = now._replace(prefill_context=0) if decodes == now.decodes else planned
        if planned is None or not prefill_tokens + decodes:
            return
        shape = planned._replace(decodes=decodes, sequences=decodes).with_prefill(prefill_tokens)
        self._times.observe(shape, batch.step_s)

    def _prompt_tokens(
        self, rows: Requests, targets_s: FloatArray, shape: StepShape, now_s: float
    ) -> int:
        """Prompt tokens for which the decodes of a step leave time; whole blocks, at least one."""
        allowed_s = self._allowed_s(rows, targets_s, now_s)
        block, most = self._engine.kv_block_tokens, self._engine.max_token_budget
        found = self._times.prefill_within(AIM * allowed_s, shape, most)
        blocks = max(found // block, 1)
        before = most // block if self._prefill is None else self._prefill // block
        change = blocks - before
        if self._prefill is not None and 0 < change < FEW_BLOCKS:
            # Half the way up, so that what it learns from a step cannot throw it to and fro.
            blocks = before + change // 2
        tokens = block * blocks
        # Answers gain time until another block fits, and lose it again: that is no change.
        if abs(blocks - before) > 1:
            self._counters["limits_lowered" if blocks < before else "limits_raised"] += 1
        self._prefill = tokens
        if self._engine.lag_steps:
            self._next_s = self._times(shape.with_prefill(tokens))
        return tokens

    def _allowed_s(self, rows: Requests, targets_s: FloatArray, now_s: float) -> float:
        """How long the step may take for the decode that can spare least."""
        first_s, out = rows.first_token_s, np.maximum(rows.output_tokens, 1)
        slack_s = first_s + out * targets_s - now_s
        if self._engine.lag_steps:
            # The step before has yet to give its token, and takes its time.
            slack_s += targets_s - self._next_s
        slack_s = np.where(np.isnan(first_s), targets_s, targets_s + SHARE * (slack_s - targets_s))
        return float(np.clip(slack_s, LEAST * targets_s, MOST * targets_s).min())

    def _decodes_too_long(self, shape: StepShape, target_s: float) -> bool:
        longest_s = target_s * (CALM if self._full else 1.0)
        self._full = self._times(shape.with_prefill(0)) > longest_s
        return self._full

    def _kv_seats_of(self, running: int) -> int | None:
        seats = self._kv_seats
        if seats is not None and running >= seats and self._quiet_steps >= MORE_STEPS:
            self._quiet_steps = 0
            self._counters["limits_raised"] += 1
            seats = self._kv_seats = seats + 1 if seats + 1 < self._engine.max_running else None
        return seats

    def _tell(self, budget: int) -> None:
        """Keep the course of the budget among the counters."""
        self._steps += 1
        self._tokens += budget
        least = self._counters["limits_least_tokens"]
        self._counters["limits_least_tokens"] = min(budget, least) if least else budget
        self._counters["limits_mean_tokens"] = self._tokens // self._steps
