"""The step that a policy is asked about, and what it is told before."""

from __future__ import annotations

from batchpolicy.policy import Step
from batchpolicy.requests import Requests
from batchpolicy.runner.busy import Busy
from batchpolicy.runner.facts import EngineFacts
from batchpolicy.runner.guard import Guard
from batchpolicy.runner.ledger import Ledger

SPARE_ROWS = 16
"""Rows beyond the free seats that are offered, as the engine passes some by."""
MAX_QUIET_STEPS = 64
"""Steps after which events are delivered although nothing is to be planned."""


class StepMaker:
    """Makes steps, and delivers to the hooks with one what happened before it."""

    def __init__(self, engine: EngineFacts, ledger: Ledger, guard: Guard, busy: Busy) -> None:
        self._engine = engine
        self._ledger = ledger
        self._guard = guard
        self._busy = busy
        self.index = 0
        """Number of the current step."""
        self._quiet_steps = 0

    def begin(self, now_s: float) -> None:
        """The next step starts."""
        self.index += 1
        self._busy.begin(now_s)

    def make(
        self,
        running: Requests,
        waiting: Requests,
        seats: int,
        tokens: int,
        blocks: int,
        admissions: int | None = None,
    ) -> Step:
        """``admissions`` may come at most, by default as many as seats are free."""
        most = seats if admissions is None else admissions
        engine, ledger = self._engine, self._ledger
        return Step(
            index=self.index,
            now_s=ledger.now_s,
            lag_steps=engine.lag_steps,
            role=engine.role,
            mixed=engine.mixed,
            max_partial=engine.max_partial or engine.max_running,
            decode_tokens=engine.decode_tokens,
            max_running=engine.max_running,
            max_token_budget=engine.max_token_budget,
            total_kv_blocks=engine.total_kv_blocks,
            kv_block_tokens=engine.kv_block_tokens,
            seats=seats,
            token_budget=tokens,
            free_kv_blocks=blocks,
            running=running,
            waiting=waiting,
            window=max(most, 0) + SPARE_ROWS,
            step_s=ledger.batch.step_s,
            busy_frac=self._busy.frac(ledger.now_s),
            cost=engine.cost,
        )

    def deliver(self, step: Step) -> None:
        """Run the hooks for all that has happened until ``step``."""
        self._quiet_steps = 0
        events = self._ledger.events
        if events:
            self._guard.hooks(lambda: events.deliver(step), events.silence)

    def rest(self, running: Requests, waiting: Requests, blocks: int, seats: int) -> None:
        """Nothing to plan; keep the accounts from lagging for ever."""
        self._quiet_steps += 1
        if self._quiet_steps >= MAX_QUIET_STEPS:
            self._ledger.batch.settle()
            self.deliver(self.make(running, waiting, seats, 0, blocks))
