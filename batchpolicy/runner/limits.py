"""The limits that hold in each step: of the engine, the file, the policy and the controller."""

from __future__ import annotations

import logging
from collections import Counter

from batchpolicy.config import LimitSettings
from batchpolicy.policy import Limits, Policy
from batchpolicy.runner.controller import LimitController
from batchpolicy.runner.facts import EngineFacts, Plan
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.ledger import Ledger
from batchpolicy.runner.step_maker import StepMaker

logger = logging.getLogger(__name__)


class StepLimits:
    """Asks for the limits of each step, and knows which of them the engine knows."""

    def __init__(
        self,
        engine: EngineFacts,
        settings: LimitSettings,
        policy: Policy,
        guard: Guard,
        ledger: Ledger,
        steps: StepMaker,
        counters: Counter[str],
    ) -> None:
        self._engine = engine
        self._guard = guard
        self._ledger = ledger
        self._steps = steps
        self._counters = counters
        self._ceilings = self._told = Limits(
            engine.max_running, engine.max_token_budget, engine.max_prefill_chunk
        )
        """Those of the engine, and those that it knows of."""
        self._base = self._within(_limits_of(settings), self._ceilings)
        """Those of the file, or of whoever has set others since."""
        self.current = self._base
        """Those that hold now."""
        self._asks_policy = policy.overrides("limits")
        self.controller = (
            None
            if settings.tpot_target_s is None
            else LimitController(engine, settings.tpot_target_s, counters)
        )
        self._for_others = 0
        """Requests that the last plan displaces for others, and not for want of blocks."""

    def relimit(self, limits: Limits) -> None:
        """Other limits from the next step on, up to the engine's; None leaves one as it is."""
        both = zip(limits, self._base, strict=True)
        asked = Limits(*(old if new is None else new for new, old in both))
        self._base = self.current = self._within(asked, self._ceilings)

    def ask(self) -> None:
        """The tightest of what the file, the policy and the controller say holds now."""
        if not self._asks_policy and self.controller is None:
            return
        ledger, limits = self._ledger, self._base
        if self._asks_policy:
            ledger.batch.settle()
            running, waiting = ledger.view(ledger.running), ledger.view(ledger.waiting)
            step = self._steps.make(running, waiting, self._engine.max_running, 0, 0)
            limits = self._within(self._guard.limits(step), limits)
        if self.controller is not None:
            limits = self._controlled(self.controller, limits)
        self.current = limits

    def seats(self, free: int) -> int:
        """How many of the engine's free seats admission may fill."""
        most = self.current.max_running
        if most is None or self.current == self._ceilings:
            return free
        return min(free, most - len(self._ledger.running))

    def news(self, chunk: int | None) -> Limits | None:
        """What the engine has to be told in a step with this chunk; None for nothing."""
        limits = self.current
        if chunk != limits.prefill_chunk:
            limits = limits._replace(prefill_chunk=chunk)
        if limits == self._told:
            return None
        lifted = limits.prefill_chunk is None and self._told.prefill_chunk is not None
        self._told = limits
        # A cap that is lifted is told as one of a whole step.
        whole = limits._replace(prefill_chunk=self._engine.max_token_budget)
        return whole if lifted else limits

    def planned(self, plan: Plan) -> None:
        """Preemptions of this plan are no sign of a shortage, if it has whom they are for."""
        self._for_others = len(plan.preempt) if plan.admit else 0

    def preempted(self, requests: int) -> None:
        """So many requests lost their KV in the step planned last."""
        if self.controller is not None and requests > self._for_others:
            self.controller.short_of_blocks(len(self._ledger.running))

    def _controlled(self, controller: LimitController, most: Limits) -> Limits:
        ledger = self._ledger
        running = ledger.view(ledger.running)
        try:
            asked = controller.limits(running, ledger.batch, ledger.now_s, ledger.changes)
        except Exception:
            # The engine serves on, under the limits of the file.
            self.controller = None
            self._counters["limits_faults"] += 1
            logger.exception("the controller of limits failed; they stay as the file has them")
            return most
        return self._within(asked, most, rows=len(running))

    def _within(self, asked: Limits, most: Limits, *, rows: int | None = None) -> Limits:
        """Every limit set, at most ``most``; room for all decodes, and a chunk of a block.

        ``rows`` is how many may decode in the next step; None for as many as there are seats.
        """
        seats, tokens, chunk = (
            ceiling if value is None else value if ceiling is None else min(value, ceiling)
            for value, ceiling in zip(asked, most, strict=True)
        )
        engine = self._engine
        block = engine.kv_block_tokens
        least = max(engine.max_running * engine.decode_budget_tokens, block)
        if rows is not None:
            least = min(least, rows * engine.decode_budget_tokens + block)
        # A budget below the decodes would starve the tail of the running requests; one below a
        # prompt that has to go whole would hold it back for ever.
        least = least if engine.chunks else engine.max_token_budget
        tokens = max(tokens or 0, min(least, engine.max_token_budget))
        return Limits(seats, tokens, None if chunk is None else max(chunk, block))


def _limits_of(settings: LimitSettings) -> Limits:
    return Limits(settings.max_num_seqs, settings.max_num_batched_tokens, settings.prefill_chunk)
