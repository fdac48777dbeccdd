"""Least counter first without lift: a known loser, for comparison."""

from __future__ import annotations

from typing_extensions import override

from batchpolicy.policies.virtual_token_counter import VirtualTokenCounter
from batchpolicy.policy import Step
from batchpolicy.requests import Requests


class LeastCounterFirst(VirtualTokenCounter):
    """Virtual token counters of which nobody is lifted.

    Whoever was idle has saved up what the others were served meanwhile, and takes all of
    it at once: no bound holds between tenants that wait.
    """

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        # They wait, and their tenants stay where they were.
        self.fairness.on_preempted(rows, step)
