"""Books on the hooks of a policy, request by request."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from batchpolicy.policy import Policy, Step, Work
from batchpolicy.requests import Requests, Status
from tests.support.policies import Patched


class Balance:
    """What hooks were told of each submission number; fails on what may not come then."""

    def __init__(self) -> None:
        self.arrived: set[int] = set()
        self.finished: dict[int, int] = {}
        self.admitted: Counter[int] = Counter()
        self.preempted: Counter[int] = Counter()
        self.slots: dict[int, int] = {}

    def over(self, inner: Policy) -> Policy:
        """The same policy, its hooks being written down."""

        def told(hook: str) -> Any:
            def note(rows: Requests, *rest: Any) -> None:
                getattr(self, f"_{hook}")(rows, *rest)
                getattr(inner, hook)(rows, *rest)

            return note

        hooks = ("on_arrived", "on_admitted", "on_computed", "on_preempted", "on_finished")
        patches: dict[str, Any] = {hook: told(hook) for hook in hooks}
        return Patched.over(inner, rank=inner.rank, **patches)

    def running(self, seq: int) -> bool:
        return self.admitted[seq] > self.preempted[seq]

    def _alive(self, rows: Requests) -> list[int]:
        seqs: list[int] = rows.seq.tolist()
        assert len(set(seqs)) == len(seqs)
        assert all(seq in self.arrived and seq not in self.finished for seq in seqs)
        assert [self.slots[seq] for seq in seqs] == rows.slot.tolist()
        return seqs

    def _on_arrived(self, rows: Requests, step: Step) -> None:
        for seq, slot in zip(rows.seq.tolist(), rows.slot.tolist(), strict=True):
            assert seq not in self.arrived
            owners = {s for s, held in self.slots.items() if held == slot}
            assert owners <= set(self.finished), "a slot with two owners"
            self.arrived.add(seq)
            self.slots[seq] = slot

    def _on_admitted(self, rows: Requests, step: Step) -> None:
        for seq in self._alive(rows):
            assert not self.running(seq)
            self.admitted[seq] += 1

    def _on_preempted(self, rows: Requests, step: Step) -> None:
        for seq in self._alive(rows):
            assert self.running(seq)
            self.preempted[seq] += 1

    def _on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        for seq in self._alive(rows):
            assert self.admitted[seq], "work of who never started"
        assert np.all(work.prefill_tokens >= 0)
        assert np.all(work.output_tokens >= 0)

    def _on_finished(self, rows: Requests, step: Step) -> None:
        for seq, status in zip(self._alive(rows), rows.status.tolist(), strict=True):
            assert status >= int(Status.FINISHED)
            self.finished[seq] = status
